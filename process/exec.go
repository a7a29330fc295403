package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lookPath finds a program as execvp does, in the PATH that the worker gets.
func lookPath(name string, env []string) (string, error) {
	if name == "" {
		return "", errors.New("the program's name is empty")
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	path, found := "", false
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path, found = value, true
		}
	}
	if !found {
		path = "/bin:/usr/bin"
	}
	err := error(fs.ErrNotExist)
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		full := filepath.Join(dir, name)
		if !strings.Contains(full, "/") {
			full = "./" + full
		}
		info, serr := os.Stat(full)
		if serr != nil || info.IsDir() {
			continue
		}
		if unix.Access(full, unix.X_OK) == nil {
			return full, nil
		}
		err = fs.ErrPermission
	}
	if err == fs.ErrPermission {
		return "", fmt.Errorf("found in PATH but not executable: %w", syscall.EACCES)
	}
	return "", fmt.Errorf("not found in the worker's PATH (%s): %w", path, syscall.ENOENT)
}

// An InterpreterError says that a script's #! line names a program that is not
// there.
type InterpreterError struct {
	Interpreter string
	Err         error
}

func (e *InterpreterError) Error() string {
	return fmt.Sprintf("interpreter %s of its #! line: %v", e.Interpreter, e.Err)
}

func (e *InterpreterError) Unwrap() error { return e.Err }

// explainExec makes a missing interpreter out of an exec that found nothing
// although the file is there.
func explainExec(path string, err error) error {
	if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EACCES) {
		return err
	}
	file, ferr := os.Open(path)
	if ferr != nil {
		return err
	}
	defer file.Close()
	var head [256]byte
	n, _ := file.Read(head[:])
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return err
	}
	fields := strings.Fields(string(rest))
	if len(fields) == 0 {
		return err
	}
	if unix.Access(fields[0], unix.X_OK) == nil {
		return err
	}
	return &InterpreterError{Interpreter: fields[0], Err: err}
}

// CheckLimits says whether this process may have n workers: descriptors for
// their files and processes of the user. It raises the soft limits as far as the
// hard ones allow.
func CheckLimits(n int) error {
	// Pipe ends, log files, a pidfd and store connections of each worker.
	const perWorker, base = 16, 64
	return errors.Join(
		checkLimit("open files (ulimit -n)", unix.RLIMIT_NOFILE, uint64(n)*perWorker+base, n),
		checkLimit("processes (ulimit -u)", unix.RLIMIT_NPROC, uint64(n)+16, n),
	)
}

func checkLimit(what string, resource int, need uint64, workers int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return fmt.Errorf("limit of %s: %w", what, err)
	}
	if limit.Cur >= need {
		return nil
	}
	if limit.Max < need {
		return fmt.Errorf("the limit of %s is %d, and %d workers need %d; raise it or start fewer workers", what, limit.Max, workers, need)
	}
	limit.Cur = need
	if err := unix.Setrlimit(resource, &limit); err != nil {
		return fmt.Errorf("raise the limit of %s to %d: %w", what, need, err)
	}
	return nil
}

// SignalName returns a signal's name, such as SIGTERM; its number if it has none.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
