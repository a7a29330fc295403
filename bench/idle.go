//go:build linux

package main

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// measureIdle lets the contenders watch four workers that do nothing, all over
// the same stretch of time, and reads what their processes weigh and do.
func measureIdle(l *lab) ([]*row, error) {
	const workers = 4
	stretch := 20 * time.Second
	if l.quick {
		stretch = 6 * time.Second
	}
	rss := &row{What: "resident memory of the agent, 4 workers running", Chart: "agent's memory, 4 workers", Bar: "memory of the launcher", Unit: size, Goal: 15 << 20}
	pss := &row{What: "the same, its share of shared pages only (PSS)", Unit: size}
	extra := &row{What: "resident memory of its helper processes (the guard)", Unit: size}
	cpu := &row{What: fmt.Sprintf("CPU of the idle agent and its helpers in %.0f s", stretch.Seconds()), Unit: seconds, GoalText: "0"}
	wakes := &row{What: fmt.Sprintf("wake-ups of all their threads in %.0f s", stretch.Seconds()), Unit: count, GoalText: "0"}

	type subject struct {
		name    string
		job     *job
		agent   []int // the launcher, then its helpers
		workers []int
	}
	var subjects []subject
	for _, c := range l.contenders() {
		j, err := l.start(l.argv(c, workers, nil, l.worker, "idle"), console{})
		if err != nil {
			return nil, err
		}
		started, err := j.started(workers, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		s := subject{name: c, job: j}
		for _, e := range started {
			s.workers = append(s.workers, e.PID)
		}
		subjects = append(subjects, s)
	}
	time.Sleep(2 * time.Second) // start-up is over
	for i := range subjects {
		s := &subjects[i]
		s.agent = slices.DeleteFunc(descendants(s.job.pid), func(pid int) bool { return slices.Contains(s.workers, pid) })
	}
	sum := func(pids []int) (a activity, err error) {
		for _, pid := range pids {
			one, err := activityOf(pid)
			if err != nil {
				return a, err
			}
			a = a.plus(one)
		}
		return a, nil
	}
	for range l.n(3, 1) {
		before := map[string]activity{}
		for _, s := range subjects {
			var err error
			if before[s.name], err = sum(s.agent); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		time.Sleep(stretch)
		for _, s := range subjects {
			after, err := sum(s.agent)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			did := after.minus(before[s.name])
			cpu.add(s.name, did.CPU)
			wakes.add(s.name, float64(did.Switches))
			var helpers float64
			for i, pid := range s.agent {
				m, err := memoryOf(pid)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", s.name, err)
				}
				if i == 0 {
					rss.add(s.name, m.RSS)
					pss.add(s.name, m.PSS)
				} else {
					helpers += m.RSS
				}
			}
			extra.add(s.name, helpers)
		}
	}
	for _, s := range subjects {
		extra.Note += fmt.Sprintf("%s has %d; ", s.name, len(s.agent)-1)
		for _, pid := range s.workers {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := s.job.wait(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		s.job.discard()
	}
	extra.Note += "helpers are the launcher's descendants that are not workers"
	wakes.Note = "context switches of every thread, voluntary and not, from /proc"
	return []*row{rss, pss, extra, cpu, wakes}, nil
}
