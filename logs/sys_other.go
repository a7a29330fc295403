//go:build !linux

package logs

import (
	"errors"
	"os"
	"syscall"
)

// dup returns another descriptor of f's open file.
func dup(f *os.File) (*os.File, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	own, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	syscall.CloseOnExec(own)
	return os.NewFile(uintptr(own), f.Name()), nil
}

func waitWritable(*os.File) error { return errors.ErrUnsupported }

// isTerminal takes every character device but /dev/null for a terminal.
func isTerminal(f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// relayPipe makes a pipe whose reading end waits in Go's poller, while the
// worker's end is an ordinary blocking one.
func relayPipe() (agent, worker *os.File, err error) {
	var p [2]int
	syscall.ForkLock.RLock()
	err = syscall.Pipe(p[:])
	if err == nil {
		syscall.CloseOnExec(p[0])
		syscall.CloseOnExec(p[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	if err := syscall.SetNonblock(p[0], true); err != nil {
		syscall.Close(p[0])
		syscall.Close(p[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(p[0]), "relay"), os.NewFile(uintptr(p[1]), "stderr"), nil
}

// pipeCapacity returns how much may be in a pipe, in bytes.
func pipeCapacity(int) int { return 128 << 10 }

// relayTerminal fails: on this system a worker with a terminal inherits it, and
// nothing of its stderr is kept.
func relayTerminal(*os.File) (agent, worker *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}

func copyWindowSize(*os.File, []*os.File) {}

// diskFull is not known on this system.
func diskFull(string) bool { return false }
