// Package execpath finds programs in an environment that need not be this process's own,
// and says what is wrong with the nearest to one. (os/exec reads its own PATH, refuses what
// is in the current directory, and says nothing of what it has passed over.)
package execpath

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Find looks a program up as execvp does: a name with a slash is a
// path, any other is looked for in the directories of PATH, where an empty one
// is the current directory. lookup reads the environment. The error says what
// is wrong with the best candidate and wraps a syscall.Errno, but for an empty name.
func Find(name string, lookup func(string) (string, bool)) (string, error) {
	if name == "" {
		return "", fmt.Errorf("no program named: %w", fs.ErrNotExist)
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	path, ok := lookup("PATH")
	if !ok {
		path = "/bin:/usr/bin" // Python's os.defpath
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		candidate := cmp.Or(dir, ".") + "/" + name
		err := executable(candidate)
		if err == nil {
			return candidate, nil
		}
		if denied == nil && !errors.Is(err, fs.ErrNotExist) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s is not in any directory of PATH: %w", name, syscall.ENOENT)
}

// executable says why the file cannot be run, as far as that can be seen before.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory: %w", path, syscall.EACCES)
	}
	if unix.Access(path, unix.X_OK) != nil {
		return fmt.Errorf("%s is not executable (mode %v): %w", path, info.Mode(), syscall.EACCES)
	}
	return nil
}
