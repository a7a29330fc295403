// Package children knows the processes that this program has started for its own use,
// beside the workers. A process.Supervisor with WholeProgram takes every other child that
// it did not start for an orphan; these it neither reaps nor ends with the last worker.
//
// Which processes they are is a fact about the whole program, so there is one list. All
// functions may be called concurrently.
package children

import (
	"bytes"
	"os/exec"
	"sync"
	"syscall"
)

var own = struct {
	sync.RWMutex
	pids map[int]bool
}{pids: map[int]bool{}}

// Start is cmd.Start, and Has is true of the process from its beginning. The caller
// calls Wait.
func Start(cmd *exec.Cmd) error {
	own.Lock()
	defer own.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	own.pids[cmd.Process.Pid] = true
	return nil
}

// Wait is cmd.Wait, for what Start has started.
func Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	Forget(cmd.Process.Pid)
	return err
}

// Output runs a command made by exec.CommandContext and returns the end of what it wrote,
// at most limit bytes each. When the context is done the command is killed, with all that
// it has started.
func Output(cmd *exec.Cmd, limit int) (stdout, stderr []byte, err error) {
	out, said := Tail{Limit: limit}, Tail{Limit: limit}
	cmd.Stdout, cmd.Stderr = &out, &said
	err = run(cmd)
	return out.buf.Bytes(), said.buf.Bytes(), err
}

// CombinedOutput is Output with both in one, in the order in which they were written.
func CombinedOutput(cmd *exec.Cmd, limit int) ([]byte, error) {
	out := Tail{Limit: limit}
	cmd.Stdout, cmd.Stderr = &out, &out
	err := run(cmd)
	return out.buf.Bytes(), err
}

// run starts a command in a group of its own, which ends with its context, and waits for it.
func run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		// An error means that it was waited for: its number may be another group's by now.
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err := Start(cmd); err != nil {
		return err
	}
	return Wait(cmd)
}

// A Tail keeps the end of what is written to it, Limit bytes. It has no ReadFrom, by which
// exec would pass over the limit.
type Tail struct {
	Limit int
	buf   bytes.Buffer
}

// Bytes returns what it keeps.
func (t *Tail) Bytes() []byte { return t.buf.Bytes() }

func (t *Tail) Write(b []byte) (int, error) {
	n := len(b)
	b = b[max(0, n-t.Limit):]
	t.buf.Next(max(0, t.buf.Len()+len(b)-t.Limit))
	t.buf.Write(b)
	return n, nil
}

// Add makes Has true of a process that was started otherwise, until Forget.
func Add(pid int) {
	own.Lock()
	defer own.Unlock()
	own.pids[pid] = true
}

// Forget undoes Add.
func Forget(pid int) {
	own.Lock()
	defer own.Unlock()
	delete(own.pids, pid)
}

// Has reports whether a process is one of those. It waits for a Start under way.
func Has(pid int) bool {
	own.RLock()
	defer own.RUnlock()
	return own.pids[pid]
}
