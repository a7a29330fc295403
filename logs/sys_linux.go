package logs

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// relayTerminal makes a terminal (a pty) that resembles like, except that it
// passes bytes on as they are: like adds what a terminal adds.
func relayTerminal(like *os.File) (agent, worker *os.File, err error) {
	if agent, err = os.OpenFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	var name string
	var settings *unix.Termios
	err = cmp.Or(control(like, func(fd int) (err error) {
		settings, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}), control(agent, func(fd int) error {
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		name = fmt.Sprintf("/dev/pts/%d", n)
		return cmp.Or(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	}))
	slave := -1
	if err == nil {
		slave, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		settings.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(slave, unix.TCSETS, settings)
	}
	if err != nil {
		agent.Close()
		unix.Close(slave) // -1 is none
		return nil, nil, fmt.Errorf("pty: %w", err)
	}
	worker = os.NewFile(uintptr(slave), "stderr")
	copyWindowSize(like, []*os.File{worker})
	return agent, worker, nil
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
