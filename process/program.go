package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/execpath"
)

// programIn finds a worker's program as execvp does, in the PATH of its environment.
func programIn(env []string, name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // what is wrong with it the kernel says
	}
	return execpath.Find(name, func(want string) (string, bool) {
		for _, entry := range slices.Backward(env) { // the last of one name counts
			if value, ok := strings.CutPrefix(entry, want+"="); ok {
				return value, true
			}
		}
		return "", false
	})
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
