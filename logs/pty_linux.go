package logs

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// openPTY makes a terminal that behaves as like does, except that it passes
// output on as it is: like adds the carriage returns.
func openPTY(like *os.File) (parent, child *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	parent = os.NewFile(uintptr(fd), "pty")
	defer func() {
		if err != nil {
			parent.Close()
		}
	}()
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	cfd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	child = os.NewFile(uintptr(cfd), "terminal")
	if termios, terr := unix.IoctlGetTermios(int(like.Fd()), unix.TCGETS); terr == nil {
		termios.Oflag &^= unix.OPOST
		_ = unix.IoctlSetTermios(cfd, unix.TCSETS, termios)
	}
	copyWindowSize(like, cfd)
	return parent, child, nil
}

func copyWindowSize(from *os.File, to int) {
	if size, err := unix.IoctlGetWinsize(int(from.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(to, unix.TIOCSWINSZ, size)
	}
}

// followWindowSize keeps the size of a pty that of the console until the
// returned function is called.
func followWindowSize(console, pty *os.File) (stop func()) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range resized {
			if conn, err := pty.SyscallConn(); err == nil {
				_ = conn.Control(func(fd uintptr) { copyWindowSize(console, int(fd)) })
			}
		}
	}()
	return func() {
		signal.Stop(resized)
		close(resized)
		<-done
	}
}
