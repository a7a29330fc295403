//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// measureDeaths kills workers of a job on three hosts, whose agents start all again.
func measureDeaths(l *lab) ([]*row, error) {
	term := &row{What: "hosts: a worker's death on one of 3 → SIGTERM at the others' workers", Chart: "death on another host → SIGTERM", Goal: 0.010}
	term99 := &row{What: "hosts: the same, p99", Quantile: 0.99, Note: "p99 of torchrun is over fewer samples than muster's"}
	again := &row{What: "hosts: a worker's death on one of 3 → all workers run again", Chart: "death on another host → all run again"}
	for _, c := range l.launchers() {
		times := l.n(40, 10)
		if c == torchrun {
			times = l.n(6, 2)
		}
		t, err := l.assemble(c, 3, "3", "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		for i := range times {
			t.rest()
			if err := t.death(i%3, term, term99, again); err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
		}
		if err := t.dismiss(); err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
	}
	return []*row{term, term99, again}, nil
}

// launchers are the contenders that can run a job on several hosts.
func (l *lab) launchers() []string {
	all := l.contenders()
	return all[:len(all)-1]
}

// death kills the worker of one agent.
func (t *team) death(victim int, term, term99, again *row) error {
	pid, err := t.agents[victim].worker()
	if err != nil {
		return err
	}
	var others []*job
	for i, j := range t.agents {
		if i != victim {
			others = append(others, j)
		}
	}
	died := now()
	syscall.Kill(pid, syscall.SIGKILL)
	told, err := t.await("term", died, patience, others...)
	if err != nil {
		return err
	}
	for _, at := range told {
		term.add(t.contender, float64(at-died)/1e9)
		term99.add(t.contender, float64(at-died)/1e9)
	}
	started, err := t.await("start", died, patience, t.agents...)
	if err != nil {
		return err
	}
	again.add(t.contender, float64(maximum(started)-died)/1e9)
	return nil
}

// steady is how long a round lasts at least that is not one of a series: after quick ones, agents pause.
const steady = 5 * time.Second

// measureChange kills, stops and adds agents of a job that may have two or three.
func measureChange(l *lab) ([]*row, error) {
	const limit = 2 // seconds
	killed := &row{What: "hosts: an agent killed, 2 of 3 left → their restarted workers run", Goal: 0.1}
	joined := &row{What: "hosts: a third agent starts → all three run with it", Goal: 0.1}
	silent := &row{What: fmt.Sprintf("hosts: an agent stopped (SIGSTOP), keep-alive limit %d s → the others' restarted workers run", limit), Goal: limit + 0.1,
		Note: "it says nothing and nothing says that it is gone, as of a host that is unplugged; those and more are in [reliability.md](reliability.md). The limit begins with the last keep-alive, up to a second before. torchrun as in the row before"}
	if l.torchrunBin != "" {
		if err := l.torchChange(killed, joined); err != nil {
			return nil, fmt.Errorf("%s: %w", torchrun, err)
		}
	}
	if l.musterBin == "" {
		return []*row{joined, killed, silent}, nil
	}
	t, err := l.assemble(muster, 3, "2:3", fmt.Sprintf(",keep_alive_interval=1,keep_alive_max_attempt=%d", limit))
	if err != nil {
		return nil, err
	}
	stops := l.n(4, 1)
	for i := range l.n(12, 3) {
		time.Sleep(steady)
		if err := t.without(killed, (*team).lose); err != nil {
			return nil, err
		}
		if err := t.with(joined, patience); err != nil {
			return nil, err
		}
		if i >= stops {
			continue
		}
		time.Sleep(steady)
		if err := t.without(silent, (*team).silence); err != nil {
			return nil, err
		}
		if err := t.lose(); err != nil {
			return nil, err
		}
		if err := t.with(joined, patience); err != nil {
			return nil, err
		}
	}
	return []*row{joined, killed, silent}, t.dismiss()
}

// silence stops the last agent.
func (t *team) silence() error {
	t.agents[len(t.agents)-1].signal(syscall.SIGSTOP)
	return nil
}

// without takes the last agent from the first two and waits until they run again.
func (t *team) without(r *row, take func(*team) error) error {
	t.rest()
	two := t.agents[:2]
	begin := now()
	if err := take(t); err != nil {
		return err
	}
	return t.running(r, begin, patience, two...)
}

// with starts one more agent and waits until all run with it.
func (t *team) with(r *row, limit time.Duration) error {
	t.rest()
	begin := now()
	if err := t.join(); err != nil {
		return err
	}
	return t.running(r, begin, limit, t.agents...)
}

func (t *team) running(r *row, begin int64, limit time.Duration, agents ...*job) error {
	at, err := t.await("start", begin, limit, agents...)
	if err == nil {
		r.add(t.contender, float64(maximum(at)-begin)/1e9)
	}
	return err
}

// torchChange watches for a while what torchrun does not do, and notes that.
func (l *lab) torchChange(killed, joined *row) error {
	const watchKilled, watchJoined = 5 * time.Second, 10 * time.Second
	t, err := l.assemble(torchrun, 3, "2:3", "")
	if err != nil {
		return err
	}
	t.rest()
	two, begin := t.agents[:2], now()
	if err := t.lose(); err != nil {
		return err
	}
	err = t.running(killed, begin, watchKilled, two...)
	killed.Note, err = never(err, watchKilled, "nor within 25 s, watched by hand")
	if err := errors.Join(err, t.dismiss()); err != nil {
		return err
	}
	if t, err = l.assemble(torchrun, 2, "2:3", ",last_call_timeout=1"); err != nil {
		return err
	}
	err = t.with(joined, watchJoined)
	joined.Note, err = never(err, watchJoined, "rank 0 is one of the first two, and all end after 60 s with an error, watched by hand")
	return errors.Join(err, t.dismiss())
}

// never makes a note of what did not happen, instead of an error.
func never(err error, limit time.Duration, more string) (string, error) {
	if !errors.Is(err, errQuiet) {
		return "", err
	}
	return strings.Join([]string{fmt.Sprintf("torchrun's agents did not do it within the %.0f s in which they were watched", limit.Seconds()), more}, "; "), nil
}
