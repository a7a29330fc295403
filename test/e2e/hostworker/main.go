// Command hostworker is the worker of the end-to-end tests of jobs on many hosts.
// Unlike the test binary, which is built with -race, it is up within two
// milliseconds, so that what the tests measure is the agents' work.
//
// It reports on the board, a named pipe, when it is up and when it is told to stop,
// and then exits; with MUSTER_E2E_SAVES not before it is told to. Through the pipe of its host it
// is told to exit with some status.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := say("up"); err != nil {
		fmt.Fprintln(os.Stderr, "hostworker:", err)
		os.Exit(98)
	}
	order := make(chan int)
	go func() { order <- hear() }()
	select {
	case <-stop:
		_ = say("term")
		if os.Getenv("MUSTER_E2E_SAVES") != "" {
			os.Exit(<-order)
		}
		os.Exit(128 + int(syscall.SIGTERM))
	case status := <-order:
		os.Exit(status)
	}
}

// say writes one line on the board, in one piece.
func say(verb string) error {
	f, err := os.OpenFile(os.Getenv("TESTPROC_BOARD"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.WriteString(f, os.ExpandEnv(fmt.Sprintf("%s $HOST $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $MASTER_ADDR:$MASTER_PORT %d\n",
		verb, time.Now().UnixNano())))
	return err
}

// hear reads the exit status that it is told. Reading takes a byte at a time, so the
// workers of a host take turns.
func hear() (status int) {
	f, err := os.Open(os.ExpandEnv("$MUSTER_E2E_DIR/$HOST"))
	if err == nil {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
	}
	if err == nil {
		_, err = fmt.Fscanln(f, &status)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostworker:", err)
		return 97
	}
	return status
}
