//go:build linux

// Command worker is what the benchmark's launchers start: a process as small
// as Go makes one, that notes when things happen on the system's monotonic
// clock. Its own start-up is part of what every launcher is charged with, the
// floor included.
//
// It writes its notes to the file named by BENCH_EVENTS, one line each:
//
//	<what> <local rank> <restart count> <pid> <nanoseconds> [<number>]
//
// With "bare" as its first argument it is the floor: a launcher of nothing but
// fork, exec, wait and kill. With "exec" it becomes the program that its further
// arguments name.
package main

import (
	"cmp"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// lifetime ends a worker whose launcher has been lost.
const lifetime = 5 * time.Minute

func main() {
	begin := now()
	if len(os.Args) < 2 {
		os.Exit(64)
	}
	mode, args := os.Args[1], os.Args[2:]
	if mode == "bare" {
		os.Exit(bare(args))
	}
	w := newWorker()
	if mode == "exec" {
		w.note("exec", begin, 0)
		os.Stderr.WriteString(unix.Exec(args[0], args, os.Environ()).Error() + "\n")
		os.Exit(66)
	}
	w.note("start", begin, 0)
	time.AfterFunc(lifetime, func() { os.Exit(70) })
	switch mode {
	case "idle":
		select {}
	case "once":
	case "host":
		w.onTerm()
		select {}
	case "react":
		w.react(args)
	case "flood":
		w.flood(args)
	case "ticker":
		w.ticker(args)
	default:
		os.Exit(64)
	}
}

// worker is this process as its launcher named it.
type worker struct {
	rank, restart string
	events        *os.File
}

func newWorker() *worker {
	w := &worker{rank: cmp.Or(os.Getenv("RANK"), os.Getenv("LOCAL_RANK"), "0"), restart: cmp.Or(os.Getenv("TORCHELASTIC_RESTART_COUNT"), "0")}
	f, err := os.OpenFile(os.Getenv("BENCH_EVENTS"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(66)
	}
	w.events = f
	return w
}

// note appends one line; appends of one write are whole.
func (w *worker) note(what string, at, number int64) {
	line := what + " " + w.rank + " " + w.restart + " " + strconv.Itoa(os.Getpid()) + " " +
		strconv.FormatInt(at, 10) + " " + strconv.FormatInt(number, 10) + "\n"
	w.events.WriteString(line)
}

func now() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		os.Exit(64)
	}
	return n
}
