// Command site makes one static site of README.md and docs/: a page for each file,
// with a list of all of them beside it, and the files that they link to. It fails for a
// link within the site that leads nowhere.
//
//	site <root of the repository> <directory of the site>
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: site ROOT DIR")
		os.Exit(2)
	}
	pages, err := Build(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("site: %d pages in %s\n", pages, os.Args[2])
}
