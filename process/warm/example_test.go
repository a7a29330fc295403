package warm_test

import (
	"fmt"

	"github.com/muster-run/muster/process/warm"
)

// What warm starts have learnt of this user's scripts, and how to forget what has changed since.
func ExampleList() {
	all, err := warm.List("")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, known := range all {
		fmt.Println(known.Target, "imports", known.Modules, "modules")
		if known.Changed {
			if err := known.Forget(); err != nil {
				fmt.Println(err)
			}
		}
	}
}
