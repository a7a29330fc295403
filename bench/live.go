//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/test/netlab"
)

// restarting is muster without --live: the same script starts again.
const restarting = "muster without `--live`"

// What a liveTeam loses.
const (
	aWorker = iota
	anAgent
	aHost // is unplugged
)

// liveLimit is how long a host may be silent under muster: keep_alive_interval times
// keep_alive_max_attempt.
const liveLimit = 5.0

// measureLive kills one of three workers, each on a host of its own, or its agent, or stops
// both, and looks when the others have completed another step.
func measureLive(l *lab) ([]*row, error) {
	if l.python == "" || l.musterBin == "" {
		return nil, nil
	}
	script, err := filepath.Abs("bench/workload/live.py")
	if err != nil {
		return nil, err
	}
	worker := &row{What: "SIGKILL of one of 3 workers on 3 hosts → the others' next optimizer step, `--live`", Goal: 0.120, Chart: "a worker is lost → next step, `--live`",
		Note: "DDP over gloo, steps of 5 ms and more; the others start again from nothing, and the step is their first; torchrun with " + ownStore + " ([D1](differences.md))"}
	worst := &row{What: "the same, p99", Quantile: 0.99, Goal: 0.250}
	agent := &row{What: "SIGKILL of one of 3 agents → the others' next optimizer step, `--live`", Goal: 0.150, Chart: "an agent is lost → next step, `--live`"}
	host := &row{What: "one of 3 hosts is unplugged → the others' next optimizer step, `--live`", Goal: liveLimit + 0.150, Chart: "a host is unplugged → next step, `--live`",
		Note: fmt.Sprintf("hosts are namespaces; one may be silent for %.0f s, and its last sign of life is up to a second old", liveLimit)}
	growth := &row{What: "live growth by one host: how long the others stand still", Goal: 0.050, Note: "the host of an agent that was killed comes back"}
	joins := &row{What: "the worker's replacement, `--live --warm` → next step of all 3", Goal: 0.500, Note: "from the SIGKILL"}
	pause := &row{What: "how long the others stand still for it", Goal: 0.050, Note: "between two steps of the others, of which one is 5 ms of work and more"}
	if err := l.learnLive(script); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		name   string
		flags  []string
		losses int
		what   int
	}{
		{muster, []string{"--live", "--warm"}, l.n(40, 4), aWorker},
		{muster, []string{"--live", "--warm"}, l.n(8, 2), anAgent},
		{muster, []string{"--live", "--warm"}, l.n(4, 1), aHost},
		{restarting, nil, l.n(3, 1), aWorker},
		{torchrun, nil, l.n(2, 1), aWorker},
	} {
		if c.name == torchrun && l.torchrunBin == "" {
			continue
		}
		var hosts *netlab.Lab
		if c.what == aHost {
			var end func()
			if hosts, end, err = l.namespaces(3); err != nil {
				fmt.Println("no host is unplugged:", err)
				continue
			}
			defer end()
		}
		t, err := l.startLive(c.name, c.flags, script, hosts)
		if err == nil {
			for i := 0; i < c.losses && err == nil; i++ {
				var got liveTimes
				if got, err = t.drop(c.what); err != nil {
					break
				}
				switch c.what {
				case aHost:
					host.add(c.name, got.next)
				case anAgent:
					agent.add(c.name, got.next)
					growth.add(c.name, got.pause)
				case aWorker:
					worker.add(c.name, got.next)
					worst.add(c.name, got.next)
					if c.name == muster {
						joins.add(muster, got.all)
						pause.add(muster, got.pause)
					}
				}
			}
			err = errors.Join(err, t.dismiss())
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := l.measureTorchFT(worker); err != nil {
		return nil, fmt.Errorf("torchft: %w", err)
	}
	worker.Note += fmt.Sprintf("; %s %s; %s (%s, lighthouse %s) %s", restarting, worker.cell(restarting), torchFT, torchFTPackage, strings.Join(lighthouseFlags, " "), worker.cell(torchFT))
	return []*row{worker, worst, agent, host, joins, pause, growth}, nil
}

// A liveTeam is three agents with a worker each.
type liveTeam struct {
	team
	live  bool
	hosts *netlab.Lab // nil: all on this machine
	argv  []string    // of the last agent
}

// liveTimes are those of a loss, in seconds.
type liveTimes struct {
	at               int64 // when it was, in ns
	next, all, pause float64
}

// learnLive has workers write down what they import, which they do after ten seconds.
func (l *lab) learnLive(script string) error {
	t, err := l.startLive(muster, []string{"--live", "--warm"}, script, nil)
	if err != nil {
		return err
	}
	time.Sleep(15 * time.Second)
	return t.dismiss()
}

func (l *lab) startLive(c string, flags []string, script string, hosts *netlab.Lab, env ...string) (*liveTeam, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	as := c
	if c == restarting {
		as = muster
	}
	t := &liveTeam{team: team{l: l, contender: as}, live: c == muster, hosts: hosts}
	flags = append(flags, "--max-restarts=1000")
	env = append([]string{"/usr/bin/env", "PYTHON_EXEC=" + l.python}, env...)
	if as == torchrun {
		env = append(env, ownStore)
	}
	for i := range 3 {
		conf := fmt.Sprintf("--rdzv-conf=last_call_timeout=3,is_host=%t", i == 0)
		if t.live {
			conf += fmt.Sprintf(",keep_alive_interval=1,keep_alive_max_attempt=%.0f", liveLimit)
		}
		own := append(flags[:len(flags):len(flags)], conf)
		if hosts != nil {
			own = append(own, "--rdzv-endpoint="+hosts.Host(0).Addr+":"+port, "--local-addr="+hosts.Host(i).Addr)
		}
		t.argv = append(env[:len(env):len(env)], l.hostArgv(as, i, port, "2:3", own, l.python, script)...)
		if t.live { // without --no-python, so that workers may be forks
			n := len(t.argv)
			t.argv = append(t.argv[:n-3:n-3], script)
		}
		j, err := t.start(i)
		if err != nil {
			return nil, err
		}
		t.agents = append(t.agents, j)
	}
	_, err = t.await(t.agents, 0, nil, 3)
	return t, err
}

// start starts the last agent's command, on the host of agent i.
func (t *liveTeam) start(i int) (*job, error) {
	var host *netlab.Host
	if t.hosts != nil {
		host = t.hosts.Host(i)
	}
	return t.l.startOn(host, t.argv, console{})
}

// await waits until each of some agents has noted a step of a world after a time, by none of
// some processes, and returns when the last of them did.
func (t *liveTeam) await(agents []*job, since int64, not map[int]bool, world int64) (last int64, err error) {
	for _, j := range agents {
		end := time.Now().Add(2 * time.Minute)
		for {
			all, err := j.events()
			if err != nil {
				return 0, err
			}
			var at int64
			for _, e := range all {
				if e.What == "step" && e.At > since && !not[e.PID] && e.Additional == world {
					at = e.At
					break
				}
			}
			if at > 0 {
				last = max(last, at)
				break
			}
			if time.Now().After(end) || zombie(j.pid) {
				return 0, fmt.Errorf("no step of %d ranks: %w: %s", world, errQuiet, j.console())
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return last, nil
}

// drop kills something of the last host or unplugs it, and waits until all continue.
func (t *liveTeam) drop(what int) (got liveTimes, err error) {
	others := t.agents[:2]
	last := t.agents[2]
	pid, err := last.worker()
	if err != nil {
		return got, err
	}
	before := map[int]bool{}
	for _, j := range t.agents {
		other, err := j.worker()
		if err != nil {
			return got, err
		}
		before[other] = true
	}
	if t.live {
		time.Sleep(1500 * time.Millisecond) // the death of a worker in its first second makes the next start cold
	}
	begin := now()
	got.at = begin
	switch what {
	case aWorker:
		err = syscall.Kill(pid, syscall.SIGKILL)
	case anAgent:
		last.signal(syscall.SIGKILL)
	case aHost:
		t.hosts.Host(2).Unplug()
	}
	if err != nil {
		return got, err
	}
	if !t.live {
		at, err := t.await(t.agents, begin, before, 3)
		got.next = float64(at-begin) / 1e9
		return got, err
	}
	at, err := t.await(others, begin, nil, 2)
	if err != nil {
		return got, err
	}
	got.next = float64(at-begin) / 1e9
	if what != aWorker {
		if what == aHost {
			t.hosts.Host(2).Kill()
		}
		if err := last.wait(); err != nil {
			return got, err
		}
		last.discard()
		if what == aHost {
			t.hosts.Host(2).Plug()
			t.hosts.Host(2).Boot()
		}
		if t.agents[2], err = t.start(2); err != nil {
			return got, err
		}
	}
	if at, err = t.await(t.agents, at, nil, 3); err != nil {
		return got, err
	}
	got.all = float64(at-begin) / 1e9
	all, err := others[0].events()
	var two int64 // the last step of 2
	for _, e := range all {
		if e.What == "step" && e.At > begin {
			if e.Additional == 3 && two > 0 {
				got.pause = float64(e.At-two) / 1e9
				break
			}
			if e.Additional == 2 {
				two = e.At
			}
		}
	}
	return got, err
}
