// Package programs gives tests the programs of this repository to start: those that `make build` has
// built, where the tests run under test.sh, and others built now.
//
// A package that uses it has to be among those whose results test.sh does not let Go cache.
package programs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvBinaries names the environment variable that has the directory of the programs that are built
// already, perhaps with the race detector. Tests start muster with their environment, so the name is
// one that muster does not refuse as unknown.
const EnvBinaries = "MUSTER_BINARIES"

// packages has the import path of each program below the module's.
var packages = map[string]string{
	"muster":        "cmd/muster",
	"muster-quorum": "cmd/muster-quorum",
	"testetcd":      "cmd/muster-quorum/internal/testetcd",
}

// Put puts programs into a directory, which it makes, under their names.
func Put(dir string, names ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var missing []string
	for _, name := range names {
		path, known := packages[name]
		if !known {
			return fmt.Errorf("no program %q", name)
		}
		built := os.Getenv(EnvBinaries)
		if built == "" {
			missing = append(missing, "github.com/muster-run/muster/"+path)
		} else if err := link(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s=%s: %w", EnvBinaries, built, err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return Build(dir, missing...)
}

// Build builds packages into a directory with the flags of build.sh, so that what they need is
// compiled once for all.
func Build(dir string, packages ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	return nil
}

// link makes a program appear under another name, as a file of its own: a program looks for others
// beside the file that it is.
func link(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return err
	}
	in, err := os.Open(from) // it is on another file system
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
