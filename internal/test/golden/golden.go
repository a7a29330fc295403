// Package golden compares what a program writes with files that hold what it should write. The flag
// -update rewrites them.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is the flag -update.
var Update = flag.Bool("update", false, "rewrite golden files and scripts with what the program says")

// Is compares a file with what it should hold.
func Is(t *testing.T, path, got string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update accepts it:\n%s", path, diff)
	}
}

// Parts compares the parts of a page that the code writes, each between a comment with its
// name and one with "end"; `make reference` writes them.
func Parts(t *testing.T, page string, parts map[string]string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for name, part := range parts {
		begin := "<!-- " + name + ": written by \"make reference\" -->\n"
		before, rest, ok := strings.Cut(text, begin)
		_, after, more := strings.Cut(rest, "<!-- end -->")
		if !ok || !more {
			t.Fatalf("%s has no part %s", page, name)
		}
		text = before + begin + "\n" + part + "\n<!-- end -->" + after
	}
	Is(t, page, text)
}
