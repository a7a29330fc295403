package autopsy

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// catches reports whether a process has a handler for a signal.
func catches(pid int, sig syscall.Signal) bool {
	text, err := procfs.ReadFile(procPath(pid, "status"))
	if err != nil || sig < 1 || sig > 64 {
		return false
	}
	mask, err := strconv.ParseUint(procfs.Field(text, "SigCgt:"), 16, 64)
	return err == nil && mask&(1<<(sig-1)) != 0
}

// sendSignal signals the process that had the pid when it started at start, and
// never another one that got its number since.
func sendSignal(pid int, start uint64, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	if stat, err := procfs.Read(pid); err != nil || stat.Start != start {
		return unix.ESRCH
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err == unix.ENOSYS || err == unix.EPERM {
		return syscall.Kill(pid, sig) // a kernel without pidfds, or a sandbox
	}
	return err
}

// resolve makes a path of the worker's one of ours: it may be relative to the
// worker's directory, or belong to a container's file system.
func resolve(s *subject, path string) string {
	if !filepath.IsAbs(path) {
		return procPath(s.PID, "cwd", path)
	}
	if elsewhere(s.PID) {
		return procPath(s.PID, "root") + path
	}
	return path
}

// elsewhere reports whether a process has another file system than we, as in a container.
func elsewhere(pid int) bool {
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	theirs, err2 := os.Readlink(procPath(pid, "ns", "mnt"))
	return err1 == nil && err2 == nil && ours != theirs
}
