//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// measureLatency lets four workers write a line now and then under --tee 3 and
// reads the launcher's console, which is a terminal or a pipe. Each line holds
// the moment at which it was written.
func measureLatency(l *lab) ([]*row, error) {
	const workers, gap = 4, 20_000 // µs between a worker's lines
	lines := 200
	if l.quick {
		lines = 100
	}
	var rows []*row
	for _, kind := range []string{"terminal", "pipe"} {
		p50 := &row{What: "tee line latency, console a " + kind + ", p50"}
		p99 := &row{What: "the same, p99", Quantile: 0.99, Goal: 0.005, Chart: "tee line latency p99, " + kind}
		for range l.n(2, 1) {
			for _, c := range l.contenders() {
				took, err := l.latencyOnce(c, kind, workers, lines, gap)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", c, err)
				}
				p50.add(c, took...)
				p99.add(c, took...)
			}
		}
		if kind == "terminal" {
			p50.Note = fmt.Sprintf("from before the worker's write to after the reader's read; a line about every %d ms from %d workers; the floor's workers write to the console themselves", gap/1000/workers, workers)
		}
		rows = append(rows, p50, p99)
	}
	return rows, nil
}

func (l *lab) latencyOnce(c, kind string, workers, lines, gap int) ([]float64, error) {
	reader, writer, err := openConsole(kind)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	flags := []string{"--tee=3"}
	j, err := l.start(l.argv(c, workers, flags, l.worker, "ticker", strconv.Itoa(lines), strconv.Itoa(gap)),
		console{stdout: writer})
	writer.Close()
	if err != nil {
		return nil, err
	}
	defer j.discard()
	done := make(chan []float64)
	go func() { done <- readTicks(reader) }()
	if err := j.expect(0); err != nil {
		return nil, err
	}
	took := <-done
	if want := workers * lines; len(took) < want*9/10 {
		return nil, fmt.Errorf("%d of %d lines reached the %s", len(took), want, kind)
	}
	return took, nil
}

// openConsole makes a terminal or a pipe.
func openConsole(kind string) (reader, writer *os.File, err error) {
	if kind == "pipe" {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, nil, err
		}
		return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
	}
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	reader = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join("/dev/pts", strconv.Itoa(n))
	if fd, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return nil, nil, err
	}
	return reader, os.NewFile(uintptr(fd), path), nil
}

// readTicks reads until the other side has closed (a terminal then gives EIO)
// and returns each line's age in seconds.
func readTicks(f *os.File) []float64 {
	runtime.LockOSThread() // the read returns on a thread that only waits for it
	defer runtime.UnlockOSThread()
	var took []float64
	var rest string
	b := make([]byte, 64<<10)
	fd := int(f.Fd())
	for {
		n, err := unix.Read(fd, b)
		at := now()
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return took
		}
		rest += string(b[:n])
		for {
			line, after, ok := strings.Cut(rest, "\n")
			if !ok {
				break
			}
			rest = after
			if i := strings.LastIndex(line, "t "); i >= 0 {
				if ns, err := strconv.ParseInt(strings.TrimSpace(line[i+2:]), 10, 64); err == nil {
					took = append(took, float64(at-ns)/1e9)
				}
			}
		}
	}
}
