package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A lookup finds programs as execvp does and remembers what it found, since all
// workers of a group mostly have the same PATH.
type lookup struct{ name, path, found string }

// in finds the program name in the PATH of env.
func (l *lookup) in(env []string, name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/bin:/usr/bin" // Python's os.defpath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	if l.found != "" && l.name == name && l.path == path {
		return l.found, nil
	}
	found, err := lookPath(name, path)
	if err == nil {
		*l = lookup{name, path, found}
	}
	return found, err
}

func lookPath(name, path string) (string, error) {
	denied := ""
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		full := dir + "/" + name
		info, err := os.Stat(full)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Access(full, unix.X_OK) == nil {
			return full, nil
		}
		denied = full
	}
	if denied != "" {
		return "", fmt.Errorf("%s is in PATH but may not be executed: %w", denied, syscall.EACCES)
	}
	return "", fmt.Errorf("not found in the worker's PATH (%.200s): %w", path, syscall.ENOENT)
}

// explainExec makes a missing interpreter out of an exec that found nothing
// although the file is there.
func explainExec(path string, err error) error {
	if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EACCES) {
		return err
	}
	info, serr := os.Stat(path)
	if serr != nil || !info.Mode().IsRegular() {
		return err
	}
	file, ferr := os.Open(path)
	if ferr != nil {
		return err
	}
	defer file.Close()
	var head [256]byte
	n, _ := io.ReadFull(file, head[:])
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return err
	}
	interpreter, _, _ := bytes.Cut(bytes.TrimLeft(rest, " \t"), []byte(" "))
	if len(interpreter) == 0 || unix.Access(string(interpreter), unix.X_OK) == nil {
		return err
	}
	return fmt.Errorf("interpreter %s of its #! line: %w", interpreter, err)
}
