//go:build linux

package main

import (
	"fmt"
)

// measureReact kills one of four workers, twice in turn or once, under
// --max-restarts=1, and reads the workers' own clocks.
func measureReact(l *lab) ([]*row, error) {
	const workers = 4
	term50 := &row{What: "a worker's death → SIGTERM at the others, p50", Chart: "death → SIGTERM at the others", Goal: 0.002}
	term99 := &row{What: "the same, p99", Quantile: 0.99}
	restart := &row{What: "a worker's death → first instruction of the restarted group", Chart: "death → restarted group runs", Bar: "a worker dies → all run again", Goal: 0.015}
	all := &row{What: "the same, of the last of its workers"}
	failed := &row{What: "a worker's death → the launcher's exit", Chart: "death → launcher's exit", Goal: 0.010}
	ended := &row{What: "the last worker's exit → the launcher's exit", Chart: "last exit → launcher's exit", Bar: "the last worker ends → the job has ended", Goal: 0.005}
	first := &row{What: "start of the launcher → first instruction of a worker", Chart: "launch → first instruction"}
	own := &row{What: "a worker's own fork, exec and start-up, in each of the rows below"}
	whole := &row{What: "the same, of the last of its workers"}

	once := func(c, second string) error {
		j, err := l.start(l.argv(c, workers, []string{"--max-restarts=1"}, l.worker, "react", fmt.Sprint(workers), second), console{})
		if err != nil {
			return err
		}
		defer j.discard()
		want := map[string]int{"fail": 1, "succeed": 0}[second]
		if err := j.expect(want); err != nil {
			return err
		}
		events, err := j.events()
		if err != nil {
			return err
		}
		var death [2]int64
		var starts [2][]int64
		var end int64
		for _, e := range events {
			switch e.What {
			case "death":
				death[e.Restart] = e.At
			case "start":
				starts[e.Restart] = append(starts[e.Restart], e.At)
			case "end":
				end = max(end, e.At)
			}
		}
		if len(starts[0]) != workers || len(starts[1]) != workers {
			return fmt.Errorf("%d and %d workers started, want %d twice: %s", len(starts[0]), len(starts[1]), workers, j.console())
		}
		for _, e := range events {
			if e.What == "term" {
				took := float64(e.At-death[e.Restart]) / 1e9
				term50.add(c, took)
				term99.add(c, took)
			}
		}
		ns := func(r *row, from, to int64) { r.add(c, float64(to-from)/1e9) }
		ns(first, j.begin, minimum(starts[0]))
		ns(whole, j.begin, maximum(starts[0]))
		ns(restart, death[0], minimum(starts[1]))
		ns(all, death[0], maximum(starts[1]))
		if second == "fail" {
			ns(failed, death[1], j.end)
		} else {
			ns(ended, end, j.end)
		}
		return nil
	}
	for range 20 {
		j, err := l.start([]string{l.worker, "once"}, console{})
		if err != nil {
			return nil, err
		}
		if err := j.expect(0); err != nil {
			return nil, err
		}
		events, err := j.events()
		if err != nil {
			return nil, err
		}
		own.add(floor, float64(events[0].At-j.begin)/1e9)
		j.discard()
	}
	for round := range l.n(16, 2) {
		for _, c := range l.contenders() {
			times := 6
			if c == torchrun {
				times = 1
			}
			for i := range times {
				second := []string{"fail", "succeed"}[(round+i)%2]
				if err := once(c, second); err != nil {
					return nil, fmt.Errorf("%s: %w", c, err)
				}
			}
		}
	}
	term99.Note = "p99 of torchrun is over fewer samples than the others"
	return []*row{own, first, whole, term50, term99, restart, all, failed, ended}, nil
}

func minimum(v []int64) int64 {
	m := v[0]
	for _, x := range v {
		m = min(m, x)
	}
	return m
}

func maximum(v []int64) int64 {
	m := v[0]
	for _, x := range v {
		m = max(m, x)
	}
	return m
}
