//go:build linux

// Command timers measures what a worker waits for its timers: it acquires and
// releases one through the socket that MUSTER_TIMER_SOCKET names, and prints how
// many nanoseconds each pair took, one a line. With the argument echo it does as
// much with a process that only sends packets back, which is the floor.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/timer"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "timers:", err)
		os.Exit(1)
	}
}

const scope = "/home/user/train.py#123"

func run(mode, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	if mode == "mirror" {
		return mirror()
	}
	pair, done, err := pairOf(mode)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for i := range n + n/10 {
		begin := time.Now()
		if err := pair(); err != nil {
			return err
		}
		if i >= n/10 { // the first ones warm up
			fmt.Fprintln(out, time.Since(begin).Nanoseconds())
		}
	}
	if err := done(); err != nil {
		return err
	}
	return out.Flush()
}

// pairOf returns what is measured, and what ends it.
func pairOf(mode string) (pair, done func() error, err error) {
	if mode == "echo" {
		return echo()
	}
	c := &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
	far := time.Now().Add(time.Hour)
	return func() error {
		if err := c.Acquire(scope, far); err != nil {
			return err
		}
		return c.Release(scope)
	}, c.Close, nil
}

// echo exchanges packets of the same size with a mirror.
func echo() (pair, done func() error, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "mirror")
	cmd := exec.Command(os.Args[0], "mirror", "0")
	cmd.Stdin = theirs
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	theirs.Close()
	packet, answer := make([]byte, 18+len(scope)), make([]byte, 4)
	pair = func() error {
		for range 2 {
			if _, err := unix.Write(fds[0], packet); err != nil {
				return err
			}
			if _, err := unix.Read(fds[0], answer); err != nil && err != unix.EINTR {
				return err
			}
		}
		return nil
	}
	return pair, func() error { unix.Close(fds[0]); return cmd.Wait() }, nil
}

func mirror() error {
	packet := make([]byte, 64)
	for {
		n, err := syscall.Read(0, packet)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 {
			return err
		}
		if _, err := syscall.Write(0, packet[:4]); err != nil {
			return err
		}
	}
}
