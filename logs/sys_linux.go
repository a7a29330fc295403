package logs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// control calls fn with f's descriptor, without changing its mode.
func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	if err := conn.Control(func(fd uintptr) { fnErr = fn(int(fd)) }); err != nil {
		return err
	}
	return fnErr
}

// dup returns another descriptor of f's open file.
func dup(f *os.File) (*os.File, error) {
	var own int
	err := control(f, func(fd int) (err error) {
		own, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), f.Name()), nil
}

// waitWritable waits until a non-blocking descriptor takes more.
func waitWritable(f *os.File) error {
	return control(f, func(fd int) error {
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
			if err != unix.EINTR {
				return err
			}
		}
	})
}

func isTerminal(f *os.File) bool {
	return control(f, func(fd int) error {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}) == nil
}

// relayPipe makes a pipe whose reading end waits in Go's poller, while the
// worker's end is an ordinary blocking one.
func relayPipe() (agent, worker *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(p[0]), "relay"), os.NewFile(uintptr(p[1]), "stderr"), nil
}

// pipeCapacity returns how much may be in a pipe or pty, in bytes.
func pipeCapacity(fd int) int {
	if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
		return n
	}
	return 128 << 10
}

// relayTerminal makes a terminal (a pty) that resembles like, except that it
// passes bytes on as they are: like adds what a terminal adds.
func relayTerminal(like *os.File) (agent, worker *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	slave := -1
	if err == nil {
		slave, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = resemble(slave, like)
	}
	if err != nil {
		unix.Close(fd)
		if slave >= 0 {
			unix.Close(slave)
		}
		return nil, nil, fmt.Errorf("pty: %w", err)
	}
	return os.NewFile(uintptr(fd), "relay"), os.NewFile(uintptr(slave), "stderr"), nil
}

// resemble gives the terminal fd the settings and size of like.
func resemble(fd int, like *os.File) error {
	return control(like, func(likeFD int) error {
		settings, err := unix.IoctlGetTermios(likeFD, unix.TCGETS)
		if err != nil {
			return err
		}
		settings.Oflag &^= unix.OPOST
		if err := unix.IoctlSetTermios(fd, unix.TCSETS, settings); err != nil {
			return err
		}
		if size, err := unix.IoctlGetWinsize(likeFD, unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size)
		}
		return nil
	})
}

// copyWindowSize gives the terminals to the size of from.
func copyWindowSize(from *os.File, to []*os.File) {
	var size *unix.Winsize
	if control(from, func(fd int) (err error) {
		size, err = unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		return err
	}) != nil {
		return
	}
	for _, f := range to {
		_ = control(f, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size) })
	}
}

// diskFullBelow is how little room, in bytes, means that a file system is full:
// a write that failed for lack of room may have been this large.
const diskFullBelow = 64 << 10

// diskFull reports whether dir's file system has no room left.
func diskFull(dir string) bool {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Blocks == 0 {
		return false
	}
	return s.Bavail*uint64(s.Frsize) < diskFullBelow || s.Files > 0 && s.Ffree == 0
}
