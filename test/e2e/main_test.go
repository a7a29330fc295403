//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/programs"
	"github.com/muster-run/muster/internal/test/testproc"
)

// bin is the directory of the program under test, under both of its names.
// MUSTER_BIN names another program to test instead; with the real torchrun the
// failures show where muster is better.
var bin string

// exe is the test binary, which is also the worker of most jobs.
var exe string

func TestMain(m *testing.M) {
	testproc.Main(steps)
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if exe, err = os.Executable(); err == nil {
		bin, err = os.MkdirTemp("", "muster-e2e-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(bin)
	if program := os.Getenv("MUSTER_BIN"); program != "" {
		if err := os.Symlink(program, filepath.Join(bin, "torchrun")); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		return m.Run()
	}
	if err := programs.Put(bin, "muster"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if err := os.Symlink("muster", filepath.Join(bin, "torchrun")); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return m.Run()
}

// The package comment says what each file shows.
func TestFilesAreNamed(t *testing.T) {
	doc := contents(t, "doc.go")
	for _, file := range glob(t, ".", "*_test.go") {
		name := strings.TrimSuffix(file, "_test.go")
		if name != "main" && strings.Contains(contents(t, file), "\nfunc Test") && !strings.Contains(doc, "\n//\t"+name+" ") {
			t.Errorf("doc.go lacks %s", name)
		}
	}
}
