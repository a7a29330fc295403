package logs

import (
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
func dup(f *os.File) (own *os.File, err error) {
	err = control(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			own = os.NewFile(uintptr(n), f.Name())
		}
		return err
	})
	return own, err
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
		_, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		return err
	}) == nil
}

// relayPipe makes a pipe whose reading end waits in Go's poller, while the
// worker's end is an ordinary blocking one.
func relayPipe() (agent, worker *os.File, err error) {
	agent, end, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer end.Close()
	end.Fd() // makes it a blocking one
	if worker, err = dup(end); err != nil {
		agent.Close()
	}
	return agent, worker, err
}
