package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/timer"
)

// live is what other goroutines than that of Run may ask for. That one writes it.
type live struct {
	mu sync.Mutex // guards the rest
	// at is the last attempt that had a round, of which nobody else touches more than
	// what its comments allow. group and exits come later.
	at       *attempt
	group    Group
	exits    map[int]process.Exit
	restarts int

	hosts  map[int]string // names of the nodes of at, by group rank, as far as they are known
	looked time.Time      // when somebody last looked for them
	looks  sync.WaitGroup
	over   bool // nobody is to look any more
}

// joined publishes an attempt that has its round.
func (l *live) joined(at *attempt, host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.group, l.exits = at, nil, nil
	l.hosts, l.looked = map[int]string{at.round.Rank: host}, time.Time{}
}

// ran publishes its workers.
func (l *live) ran(at *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group = at.group
	close(at.known)
}

// close waits for those who look for hosts' names.
func (l *live) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.looks.Wait()
}

// ended publishes how they ended.
func (l *live) ended(exits map[int]process.Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exits = maps.Clone(exits)
}

// A Worker is a worker of this host, as it is now or was at its end.
type Worker struct {
	Rank, LocalRank, PID int
	Started              time.Time
	Exit                 *process.Exit    // nil while it runs
	Heartbeat            *timer.Heartbeat // what it last told; nil if it has not
	Output               logs.Output
	// Stdout and Stderr are its log files, "" where there is none. Tail are the last
	// lines of a stderr that has no file.
	Stdout, Stderr string
	Tail           []string
}

// lastLines are the last lines of a worker's stderr, at most 20, as a person would have
// seen them.
func lastLines(stderr []byte) []string {
	lines := strings.Split(strings.TrimRight(string(stderr), " \t\r\n"), "\n")
	lines = lines[max(0, len(lines)-20):]
	for i, line := range lines {
		lines[i] = text.Line(line, 500)
	}
	return lines
}

// Workers returns the last workers that were started, by local rank; none while the
// agent is in a round and has not started any. It may be called concurrently, as may
// Hosts, Timers, TimerStats and Alive, also before and after Run.
func (a *Agent) Workers() []Worker {
	a.live.mu.Lock()
	at, group, exits := a.live.at, a.live.group, a.live.exits
	a.live.mu.Unlock()
	if group == nil {
		return nil
	}
	var workers []Worker
	for i, pid := range group.PIDs() {
		sink := at.logs.Sink(i)
		w := Worker{
			Rank: at.ranks.Base + i, LocalRank: i, PID: pid, Started: at.began,
			Heartbeat: a.heartbeat(pid), Output: at.logs.Output(i), Stdout: sink.StdoutPath, Stderr: sink.StderrPath,
		}
		if sink.StderrPath == "" {
			w.Tail = lastLines(at.logs.StderrTail(i))
		}
		if exit, ended := exits[i]; ended {
			w.Exit = &exit
		}
		workers = append(workers, w)
	}
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.LocalRank, b.LocalRank) })
	return workers
}

// heartbeat is what a worker last told of its progress; nil if it has not.
func (a *Agent) heartbeat(pid int) *timer.Heartbeat {
	w := a.watchdog.Load()
	if w == nil || w.socket == nil {
		return nil
	}
	h, ok := w.socket.Heartbeat(pid)
	if !ok {
		return nil
	}
	return &h
}

// Timers returns the next timers of the workers to run out, at most limit.
func (a *Agent) Timers(limit int) []timer.Request {
	if w := a.watchdog.Load(); w != nil {
		return w.server.Live(limit)
	}
	return nil
}

// TimerStats counts what became of the workers' timers, and the lines of the FIFO that
// were no requests.
func (a *Agent) TimerStats() (stats timer.Stats, malformed uint64) {
	w := a.watchdog.Load()
	if w == nil {
		return stats, 0
	}
	stats = w.server.Stats()
	return stats, stats.FIFO.Malformed
}

// Alive returns when the agent last made progress. It waits for events only, which
// is progress, so that is now, unless the server of the workers' timers is stuck.
// Source: the alive callback of LocalElasticAgent._setup_healthcheck.
func (a *Agent) Alive() time.Time {
	if w := a.watchdog.Load(); w != nil {
		return w.server.Progress()
	}
	return time.Now()
}

// mostHosts bounds how many hosts' names are looked up, and lookInterval is how often
// those that are missing are.
const (
	mostHosts    = 256
	lookInterval = 2 * time.Second
)

// Hosts returns the names of the nodes of the round, by group rank, as far as they are
// known; nil where there is no round. The nodes tell them when their workers run: Hosts
// begins to look up those that are missing, for the next call.
func (a *Agent) Hosts() []string {
	l := &a.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		return nil
	}
	names := make([]string, l.at.round.WorldSize)
	for i := range names {
		names[i] = l.hosts[i]
	}
	if now := time.Now(); l.group != nil && !l.over && now.Sub(l.looked) >= lookInterval && len(l.hosts) < min(len(names), mostHosts) {
		l.looked = now
		at, known := l.at, maps.Clone(l.hosts)
		l.looks.Go(func() { a.lookForHosts(at, known) })
	}
	return names
}

// lookForHosts adds to known the names that the nodes of an attempt have told, and
// publishes it.
func (a *Agent) lookForHosts(at *attempt, known map[int]string) {
	ctx, cancel := context.WithTimeout(at.life, a.cfg.PeerTimeout)
	defer cancel()
	for i := 0; i < at.round.WorldSize && len(known) < mostHosts; i++ {
		if _, ok := known[i]; ok {
			continue
		}
		name, err := hostOf(ctx, at, i)
		if err != nil {
			return
		}
		if name != "" {
			known[i] = name
		}
	}
	a.live.mu.Lock()
	defer a.live.mu.Unlock()
	if a.live.at == at {
		a.live.hosts = known
	}
}
