//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureView measures how one host shows a job of several, and what that costs those who do not
// look.
func measureView(l *lab) ([]*row, error) {
	if l.musterBin == "" {
		return nil, nil
	}
	var rows []*row
	for _, measure := range []func(*lab) ([]*row, error){measureStacks, measureUnseen, measureWatched} {
		some, err := measure(l)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// hosts starts the agents of a job, all on this machine, and waits until their workers run.
func (l *lab) hosts(contender string, n, workers int, c console, flags []string, command ...string) ([]*job, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	flags = append([]string{"--nproc-per-node=" + strconv.Itoa(workers), "--max-restarts=0"}, flags...)
	jobs := make([]*job, n)
	for i := range jobs {
		argv := l.hostArgv(contender, i, port, fmt.Sprint(n), append(flags, fmt.Sprintf("--rdzv-conf=is_host=%t", i == 0)), command...)
		if jobs[i], err = l.start(argv, c); err != nil {
			return nil, err
		}
	}
	for _, j := range jobs {
		if _, err := j.started(workers, 0); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// measureStacks asks one of eight agents for the stacks of eight interpreters on each. The floor
// is py-spy, once for each interpreter, two at a time, where it is installed.
func measureStacks(l *lab) ([]*row, error) {
	const hosts, workers = 8, 8
	python, err := exec.LookPath("python3")
	if l.python != "" {
		python, err = l.python, nil
	}
	if err != nil {
		return nil, nil
	}
	r := &row{What: "stacks of 64 workers on 8 hosts, asked from one (`muster dump`)", Goal: 5, Note: "all agents on this machine; the floor is `py-spy dump` of each worker, two at a time"}
	jobs, err := l.hosts(muster, hosts, workers, console{}, nil, python, "-c", `
import os, threading, time
with open(os.environ["BENCH_EVENTS"], "a") as events:
    events.write("start %s 0 %d %d 0\n" % (os.environ["LOCAL_RANK"], os.getpid(), time.monotonic_ns()))
threading.Event().wait()
`)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, j := range jobs {
		started, err := j.started(workers, 0)
		if err != nil {
			return nil, err
		}
		for _, e := range started {
			pids = append(pids, e.PID)
		}
	}
	spy := filepath.Join(filepath.Dir(python), "py-spy")
	if !executable(spy) {
		spy, _ = exec.LookPath("py-spy")
	}
	for range l.n(5, 2) {
		begin := now()
		out, err := exec.Command(l.musterBin, "dump", strconv.Itoa(jobs[hosts-1].pid)).CombinedOutput()
		if took := float64(now()-begin) / 1e9; err != nil || !bytes.Contains(out, []byte("64 ranks in ")) {
			return nil, fmt.Errorf("muster dump: %w: %s", err, out)
		} else {
			r.add(muster, took)
		}
		if spy == "" {
			continue
		}
		begin = now()
		var g errgroup.Group
		g.SetLimit(2)
		for _, pid := range pids {
			g.Go(func() error { return exec.Command(spy, "dump", "--pid", strconv.Itoa(pid)).Run() })
		}
		if err := g.Wait(); err != nil {
			return nil, fmt.Errorf("py-spy: %w", err)
		}
		r.add(floor, float64(now()-begin)/1e9)
	}
	return []*row{r}, (&team{l: l, contender: muster, agents: jobs}).dismiss()
}

// measureUnseen counts what idle agents on several hosts do, of a job that nobody has looked at,
// and of one after its lines were followed and all its hosts shown.
func measureUnseen(l *lab) ([]*row, error) {
	const hosts = 4
	stretch := 20 * time.Second
	if l.quick {
		stretch = 6 * time.Second
	}
	r := &row{What: fmt.Sprintf("wake-ups of 4 idle agents in %.0f s, after all hosts were looked at", stretch.Seconds()), Unit: count, Note: "the floor is a job that nobody has looked at: the rendezvous needs them"}
	jobs := map[string][]*job{}
	for _, c := range l.contenders() {
		as := c
		if c == floor {
			as = muster
		}
		var err error
		if jobs[c], err = l.hosts(as, hosts, 1, console{}, nil, l.worker, "idle"); err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
	}
	pid := strconv.Itoa(jobs[muster][hosts-1].pid)
	follow := exec.Command(l.musterBin, "logs", "-f", pid)
	if err := follow.Start(); err != nil {
		return nil, err
	}
	if out, err := exec.Command(l.musterBin, "top", "--once", pid).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("muster top: %w: %s", err, out)
	}
	time.Sleep(time.Second)
	if err := errors.Join(follow.Process.Signal(os.Interrupt), follow.Wait()); err != nil {
		return nil, fmt.Errorf("muster logs -f: %w", err)
	}
	time.Sleep(15 * time.Second) // until connections that were used are given up
	sum := func(c string) (n float64, err error) {
		for _, j := range jobs[c] {
			started, err := j.started(1, 0)
			if err != nil {
				return 0, err
			}
			for _, pid := range append(descendants(j.pid), j.pid) {
				if slices.ContainsFunc(started, func(e event) bool { return e.PID == pid }) {
					continue
				}
				a, err := activityOf(pid)
				if err != nil {
					return 0, err
				}
				n += float64(a.Switches)
			}
		}
		return n, nil
	}
	for range l.n(3, 1) {
		before := map[string]float64{}
		var err error
		for c := range jobs {
			if before[c], err = sum(c); err != nil {
				return nil, err
			}
		}
		time.Sleep(stretch)
		for c := range jobs {
			after, err := sum(c)
			if err != nil {
				return nil, err
			}
			r.add(c, after-before[c])
		}
	}
	var err error
	for c, agents := range jobs {
		err = errors.Join(err, (&team{l: l, contender: c, agents: agents}).dismiss())
	}
	return []*row{r}, err
}

// measureWatched trains on two hosts with one worker each: under muster with a reader of the lines
// and of the state; without (the floor); and under torchrun.
func measureWatched(l *lab) ([]*row, error) {
	if l.python == "" {
		return nil, nil
	}
	script, err := filepath.Abs("bench/workload/steps.py")
	if err != nil {
		return nil, err
	}
	steps := l.n(1000, 200)
	r := &row{What: "a training step of 2 hosts with 1 worker each, watched", Note: "DDP over gloo, a line of output each step; median of each worker's steps after the first fifth. Watched: `--tee 3`, a reader in `muster logs -f`, `muster top` once a second; the floor is muster with `--tee 3` and without these"}
	for range l.n(5, 2) {
		for _, c := range l.contenders() {
			took, err := l.watchedOnce(c, script, steps)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			r.add(c, took...)
		}
	}
	return []*row{r}, nil
}

func (l *lab) watchedOnce(c, script string, steps int) (took []float64, err error) {
	as, flags := c, []string{"--tee=3"}
	if c == floor {
		as = muster
	}
	jobs, err := l.hosts(as, 2, 1, console{}, flags, l.python, script, strconv.Itoa(steps))
	if err != nil {
		return nil, err
	}
	over := make(chan bool)
	var watching sync.WaitGroup
	if c == muster {
		pid := strconv.Itoa(jobs[1].pid)
		watching.Go(func() { exec.Command(l.musterBin, "logs", "-f", pid).Run() })
		watching.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Second):
					exec.Command(l.musterBin, "top", "--once", pid).Run()
				}
			}
		})
	}
	for _, j := range jobs {
		err = errors.Join(err, j.expect(0))
		events, err := j.events()
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if e.What == "step" {
				took = append(took, float64(e.Additional)/1e9)
			}
		}
		j.discard()
	}
	close(over)
	watching.Wait()
	if err == nil && len(took) != len(jobs) {
		err = fmt.Errorf("%d workers of %d say how long a step took", len(took), len(jobs))
	}
	return took, err
}
