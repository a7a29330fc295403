//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// measureLiveCost compares the steps of a job under --live, which nothing happens to, with those of
// the same job without it. Both are there all the time, and run in turn: the other one's workers
// are stopped.
func measureLiveCost(l *lab) (rows []*row, err error) {
	if l.python == "" || l.musterBin == "" {
		return nil, nil
	}
	script, err := filepath.Abs("bench/workload/live.py")
	if err != nil {
		return nil, err
	}
	step := &row{What: "a step of 3 workers on 3 hosts that nothing happens to, `--live`", GoalText: "0.5 % more than without"}
	var teams [2]*liveTeam
	for i, c := range []struct {
		name  string
		flags []string
	}{{muster, []string{"--live"}}, {restarting, nil}} {
		t, err := l.startLive(c.name, c.flags, script, nil)
		if err != nil {
			return nil, err
		}
		teams[i] = t
		defer func() { err = errors.Join(err, t.signalWorkers(syscall.SIGCONT), t.dismiss()) }()
		if err := t.signalWorkers(syscall.SIGSTOP); err != nil {
			return nil, err
		}
	}
	var more []float64
	for round := range l.n(30, 4) {
		var took [2]float64
		for i := range teams {
			i = (i + round) % 2 // neither is always the first
			if took[i], err = teams[i].stepTime(time.Second); err != nil {
				return nil, err
			}
		}
		step.add(muster, took[0])
		step.add(restarting, took[1])
		more = append(more, took[0]/took[1]-1)
	}
	step.Note = fmt.Sprintf("5 ms of sleep, and DDP over gloo; %s %s; %+.2f %% (%+.2f–%+.2f) of pairs of a second each", restarting, step.cell(restarting),
		100*quantile(more, 0.5), 100*quantile(more, 0.1), 100*quantile(more, 0.9))
	return []*row{step}, nil
}

// signalWorkers sends a signal to the workers of all agents.
func (t *liveTeam) signalWorkers(sig syscall.Signal) error {
	for _, j := range t.agents {
		pid, err := j.worker()
		if err == nil {
			err = syscall.Kill(pid, sig)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stepTime lets the workers run for a time, and returns the median of rank 0's steps, in seconds.
func (t *liveTeam) stepTime(d time.Duration) (float64, error) {
	if err := t.signalWorkers(syscall.SIGCONT); err != nil {
		return 0, err
	}
	time.Sleep(d / 10)
	from := now()
	time.Sleep(d)
	to := now()
	if err := t.signalWorkers(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	all, err := t.agents[0].events()
	if err != nil {
		return 0, err
	}
	var last int64
	var steps []float64
	for _, e := range all {
		if e.What != "step" || e.At < from || e.At > to {
			continue
		}
		if last > 0 {
			steps = append(steps, float64(e.At-last)/1e9)
		}
		last = e.At
	}
	if len(steps) == 0 {
		return 0, fmt.Errorf("no steps: %w: %s", errQuiet, t.agents[0].console())
	}
	return quantile(steps, 0.5), nil
}
