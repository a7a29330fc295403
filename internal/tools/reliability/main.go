// Command reliability has the end-to-end tests measure what
// docs/internals/failures.md says, and puts the tables that they leave into the page. It needs root and PyTorch.
//
//	go run ./internal/tools/reliability
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const page = "docs/internals/failures.md"

func main() {
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func measure() error {
	dir, err := os.MkdirTemp("", "muster-reliability-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("internal/tools/test.sh", "-v", "-run", "^(TestHosts|TestOneHostTable)$", "./test/e2e", "-args", "-tables", dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the tests: %w", err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed := string(text)
	for _, name := range [...]string{"matrix", "one host"} {
		table, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if changed, err = replace(changed, name, string(table)); err != nil {
			return err
		}
	}
	return os.WriteFile(page, []byte(changed), 0o644)
}

// replace puts a table between the comments of that name.
func replace(text, name, table string) (string, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("%s has no %s… %s", page, begin, end)
	}
	return head + begin + table + "\n" + end + tail, nil
}
