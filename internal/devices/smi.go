package devices

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// smiTimeout bounds nvidia-smi, which takes seconds where the driver is not
// kept loaded and for ever where it is broken.
const smiTimeout = 30 * time.Second

// runSMI runs nvidia-smi from PATH, or from where WSL keeps it, and returns its
// output.
func runSMI(args ...string) ([]byte, error) {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/lib/wsl/lib")
	for _, dir := range dirs {
		path := filepath.Join(dir, "nvidia-smi")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return output(path, args, smiTimeout)
		}
	}
	return nil, fmt.Errorf("not found: %w", fs.ErrNotExist)
}

// maxOutput bounds what is read of its output.
const maxOutput = 1 << 20

// output runs a program and returns what it writes to stdout.
func output(path string, args []string, timeout time.Duration) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p, err := os.StartProcess(path, append([]string{path}, args...), &os.ProcAttr{
		Files: []*os.File{nil, w, nil},
		Sys:   &syscall.SysProcAttr{Setpgid: true}, // to be killed with its children
	})
	w.Close()
	if err != nil {
		return nil, err
	}
	// Nobody has waited for it yet, so the number is still its own.
	kill := func() { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
	deadline := time.AfterFunc(timeout, kill)
	out, readErr := io.ReadAll(io.LimitReader(r, maxOutput))
	expired := !deadline.Stop()
	if expired || readErr != nil || len(out) == maxOutput {
		kill()
	}
	// From here on its number may be another's: let os.Process see to that.
	last := time.AfterFunc(timeout, func() { _ = p.Kill() })
	state, err := p.Wait()
	last.Stop()
	if expired {
		return nil, fmt.Errorf("no answer within %v", timeout)
	}
	if err == nil && !state.Success() {
		err = fmt.Errorf("%v: %.200s", state, strings.TrimSpace(string(out)))
	}
	return out, errors.Join(readErr, err)
}
