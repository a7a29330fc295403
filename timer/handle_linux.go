package timer

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// maxPidfds bounds the descriptors that a server uses. Processes beyond it are told
// apart by their start time.
const maxPidfds = 4096

// share returns n, or less where that would be more than an eighth of the descriptors
// that this program may have.
func share(n int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return n
	}
	return int(min(uint64(n), limit.Cur/8))
}

// A handle names a process for good, so that another with the same number is not
// mistaken for it.
type handle struct {
	pid   int
	fd    int    // a pidfd, or -1
	start uint64 // without a pidfd
}

// openHandle returns errNoProcess for a process that has ended.
func openHandle(pid int, bare bool) (*handle, error) {
	h := &handle{pid: pid, fd: -1}
	if !bare {
		fd, err := unix.PidfdOpen(pid, 0)
		switch err {
		case nil:
			h.fd = fd
			return h, nil
		case unix.ESRCH:
			return nil, errNoProcess
		case unix.EINVAL, unix.ENOENT:
			// Before Linux 6.9 a thread's number gives EINVAL, later ENOENT.
			return nil, fmt.Errorf("%w: the number is a thread's", errNoProcess)
		}
		// No pidfds here, or no descriptors left.
	}
	stat, err := procfs.Read(pid)
	if err != nil || !stat.Alive() {
		return nil, errNoProcess
	}
	h.start = stat.Start
	return h, nil
}

// alive reports whether the process has not ended.
func (h *handle) alive() bool {
	if h.fd >= 0 {
		n, err := retry(func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, 0)
		})
		return n == 0 && err == nil
	}
	stat, err := procfs.Read(h.pid)
	return err == nil && stat.Start == h.start && stat.Alive()
}

// send signals the process. One that has ended is not an error.
func (h *handle) send(sig syscall.Signal) error {
	err := error(unix.ENOSYS)
	if h.fd >= 0 {
		err = unix.PidfdSendSignal(h.fd, sig, nil, 0)
	}
	if err == unix.ENOSYS || err == unix.EPERM { // a sandbox may forbid that, and allow this
		if err = unix.ESRCH; h.alive() {
			err = unix.Kill(h.pid, sig)
		}
	}
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("send signal %d to process %d: %w", int(sig), h.pid, err)
}

// close may be called on nil.
func (h *handle) close() {
	if h != nil && h.fd >= 0 {
		unix.Close(h.fd)
		h.fd = -1
	}
}

// growPipe makes room for a burst of requests. It is no matter if it fails.
func growPipe(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) }
