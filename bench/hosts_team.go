//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// A team is a job on several hosts: agents on this machine, with a worker each that
// notes its start and the SIGTERM that ends it. The first one holds the rendezvous.
type team struct {
	l               *lab
	contender, port string
	nodes, conf     string // --nnodes, and what --rdzv-conf says beside is_host
	agents          []*job
}

// errQuiet says that nothing happened within the time that was given.
var errQuiet = errors.New("it did not happen")

// assemble starts n agents and waits until all their workers run.
func (l *lab) assemble(contender string, n int, nodes, conf string) (*team, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	t := &team{l: l, contender: contender, port: port, nodes: nodes, conf: conf}
	for range n {
		if err := t.join(); err != nil {
			return nil, err
		}
	}
	_, err = t.await("start", 0, patience, t.agents...)
	return t, err
}

// join starts one more agent.
func (t *team) join() error {
	flags := []string{"--max-restarts=1000", fmt.Sprintf("--rdzv-conf=is_host=%t%s", len(t.agents) == 0, t.conf)}
	j, err := t.l.start(t.l.hostArgv(t.contender, len(t.agents), t.port, t.nodes, flags, t.l.worker, "host"), console{})
	if err == nil {
		t.agents = append(t.agents, j)
	}
	return err
}

// await waits until the workers of some agents have noted something after a time,
// and returns when each of them first did.
func (t *team) await(what string, since int64, limit time.Duration, agents ...*job) (at []int64, err error) {
	for end := time.Now().Add(limit); len(at) < len(agents); {
		j := agents[len(at)]
		e, err := j.first(what, since)
		switch {
		case err != nil:
			return nil, err
		case e != nil:
			at = append(at, e.At)
			continue
		case zombie(j.pid):
			return nil, fmt.Errorf("an agent has ended: %s", j.console())
		case time.Now().After(end):
			return nil, fmt.Errorf("%s within %v: %w: %s", what, limit, errQuiet, j.console())
		}
		time.Sleep(2 * time.Millisecond)
	}
	return at, nil
}

// first is the first note of a kind after a time, or nil.
func (j *job) first(what string, since int64) (*event, error) {
	all, err := j.events()
	for _, e := range all {
		if e.What == what && e.At > since {
			return &e, err
		}
	}
	return nil, err
}

// worker is the agent's worker that was started last.
func (j *job) worker() (pid int, err error) {
	all, err := j.events()
	for _, e := range all {
		if e.What == "start" {
			pid = e.PID
		}
	}
	if pid == 0 {
		err = errors.Join(err, errors.New("an agent has no worker"))
	}
	return pid, err
}

// lose kills the last agent.
func (t *team) lose() error {
	j := t.agents[len(t.agents)-1]
	t.agents = t.agents[:len(t.agents)-1]
	j.signal(syscall.SIGKILL)
	defer j.discard()
	return j.wait()
}

// dismiss ends the agents, and what workers they have left behind. torchrun's may
// wait for each other, for a minute, before they act on a SIGTERM.
func (t *team) dismiss() error {
	sig := syscall.SIGTERM
	if t.contender == torchrun {
		sig = syscall.SIGKILL
	}
	for _, j := range t.agents {
		j.signal(sig)
	}
	var err error
	for _, j := range t.agents {
		err = errors.Join(err, j.wait())
		j.discard()
	}
	for _, pid := range marked(t.l.mark) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	return err
}

// rest waits for a random time, longer than a poll of torchrun's is apart, so that
// what follows falls into any moment of it.
func (t *team) rest() {
	most := 50 * time.Millisecond
	if t.contender == torchrun {
		most = time.Second
	}
	time.Sleep(50*time.Millisecond + rand.N(most))
}
