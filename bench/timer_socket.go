//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-run/muster/timer"
)

// measureTimerSocket lets children of this process acquire and release timers that
// it serves, as an agent does. There is no peer: PyTorch's local timer goes through
// a multiprocessing queue that answers nothing.
func measureTimerSocket(l *lab) ([]*row, error) {
	trip := &row{What: "timer: acquire + release over the Unix socket, Go client", Chart: "timer: acquire + release", Goal: 20e-6}
	python := &row{What: "timer: the same with the Python client", Chart: "timer: acquire + release, Python", Goal: 20e-6}
	worst := &row{What: "timer: the same, p99", Quantile: 0.99}
	beat := &row{What: "timer: a heartbeat of the Python client"}

	client := filepath.Join(l.dir, "timers")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", client, "./bench/workload/timers").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build timers: %w: %s", err, out)
	}
	path, stop, err := serveTimers()
	if err != nil {
		return nil, err
	}
	interpreter := l.python
	if interpreter == "" {
		interpreter, _ = exec.LookPath("python3")
	}
	n := 20_000
	if l.quick {
		n = 4_000
	}
	for range l.n(5, 2) {
		for _, m := range []struct {
			contender string
			rows      []*row
			argv      []string
			n         int
		}{
			{muster, []*row{trip}, []string{client, "socket"}, n},
			{floor, []*row{trip}, []string{client, "echo"}, n},
			{muster, []*row{python, worst}, []string{interpreter, "bench/workload/timers.py", "pair"}, n},
			{muster, []*row{beat}, []string{interpreter, "bench/workload/timers.py", "heartbeat"}, n / 10},
		} {
			if m.argv[0] == "" {
				continue
			}
			samples, e := socketClient(path, m.n, m.argv)
			if e != nil {
				return nil, errors.Join(e, stop())
			}
			for _, r := range m.rows {
				if r.Quantile == 0 {
					r.add(m.contender, quantile(samples, 0.5)) // a median for each run
				} else {
					r.add(m.contender, samples...)
				}
			}
		}
	}
	trip.Note = "both are answered, so it is two round trips; floor: two processes that send packets of this size back and forth"
	beat.Note = "it is not answered, and never waits; half a millisecond of sleep between them"
	return []*row{trip, python, worst, beat}, stop()
}

// serveTimers serves until stop is called.
func serveTimers() (path string, stop func() error, err error) {
	core, err := timer.NewServer(timer.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return "", nil, err
	}
	socket, err := timer.ListenSocket(core, "")
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { errs[0] = core.Run(ctx) })
	wg.Go(func() { errs[1] = socket.Serve(ctx) })
	return socket.Path(), func() error { cancel(); wg.Wait(); return errors.Join(errs[:]...) }, nil
}

// socketClient returns what a client printed, in seconds.
func socketClient(path string, n int, argv []string) ([]float64, error) {
	cmd := exec.Command(argv[0], append(argv[1:], strconv.Itoa(n))...)
	cmd.Env = append(os.Environ(), timer.EnvSocket+"="+path, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1")
	var console strings.Builder
	cmd.Stderr = &console
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, console.String())
	}
	var samples []float64
	for line := range strings.FieldsSeq(string(out)) {
		ns, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", argv[0], err)
		}
		samples = append(samples, ns/1e9)
	}
	return samples, nil
}
