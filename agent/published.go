package agent

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/timer"
)

// published is what goroutines other than that of Run may read. The goroutine of Run writes
// at, group and restarts, the one that waits for the group exits, Hosts and lookForHosts the
// rest.
type published struct {
	mu sync.Mutex // guards the rest
	// at is the last attempt that had a round; the comments of its parts say what others
	// may read of it. group is set when its workers run, exits when they have ended.
	at       *attempt
	past     []*attempt // those before it that had workers, the last ones
	group    Group
	exits    map[int]process.Exit
	restarts int

	hosts  map[int]string // names of the nodes of at, by group rank, as far as they are known
	looked time.Time      // when lookForHosts last began
	looks  sync.WaitGroup // goroutines of lookForHosts and spawn
	over   bool           // no more of those begin
	turned chan struct{}  // closed when workers run next, or the agent has ended; nil until somebody waits
}

// joined publishes an attempt that has its round.
func (p *published) joined(at *attempt, host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := len(p.past); {
	case p.group == nil:
	case n > 0 && p.past[n-1].team.logs == p.at.team.logs: // its workers live on
		p.past[n-1] = p.at
	default:
		p.past = append(p.past[max(0, n+1-keptAttempts):], p.at)
	}
	p.at, p.group, p.exits = at, nil, nil
	p.hosts, p.looked = map[int]string{at.round.Rank: host}, time.Time{}
}

// ran publishes its workers.
func (p *published) ran(at *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group = at.team.group
	p.turn()
	close(at.run.started)
}

// Of how many attempts after one, and rounds after one of an attempt, its lines can be asked for.
const keptAttempts, keptParts = 8, 16

// parts are those of a team's logs that are of each round. The lock of published guards them.
type parts struct {
	last *logs.Part
	of   map[int]roundPart
}

// A roundPart is the part of a round, in which this node had a group rank.
type roundPart struct {
	*logs.Part
	groupRank int
}

// part publishes which part of the workers' logs is of a round. Where workers live on it begins
// when their ranks are known; what they write before is of the last round.
func (p *published) part(at *attempt, ranks map[int]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, round := at.team.parts, at.round.Round
	switch {
	case t.of[round].Part != nil:
		return
	case t.last == nil:
		t.last = at.team.logs.Part()
	default:
		t.last = t.last.Next(ranks)
	}
	t.of[round] = roundPart{t.last, at.round.Rank}
	maps.DeleteFunc(t.of, func(r int, _ roundPart) bool { return r < round-keptParts })
	p.turn()
}

// known are the attempts that had workers, as far as they are kept, the last one first. The caller
// holds mu, of which the same is true below.
func (p *published) known(yield func(*attempt) bool) {
	if p.group != nil && !yield(p.at) {
		return
	}
	for _, at := range slices.Backward(p.past) {
		if !yield(at) {
			return
		}
	}
}

// inRound is the attempt whose workers ran in a round, and which part of their logs that is.
func (p *published) inRound(round int) (*attempt, roundPart) {
	for at := range p.known {
		if part := at.team.parts.of[round]; part.Part != nil {
			return at, part
		}
	}
	return nil, roundPart{}
}

// after is the first attempt with other log files than those of one, the last attempt if that is
// nil; nil if there is none yet.
func (p *published) after(one *attempt) (next *attempt) {
	for at := range p.known {
		switch {
		case one == nil:
			return at
		case at.team.logs == one.team.logs:
			return next
		}
		next = at
	}
	return next
}

// ended publishes how they ended.
func (p *published) ended(exits map[int]process.Exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exits = maps.Clone(exits)
}

// running is the attempt whose workers run, or ran last; nil before they do.
func (p *published) running() *attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.group == nil {
		return nil
	}
	return p.at
}

// spawn starts a goroutine that close waits for, and reports whether it does: not after that.
func (p *published) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.looks.Go(f)
	}
	return !p.over
}

// close waits for those who look for hosts' names.
func (p *published) close() {
	p.mu.Lock()
	p.over = true
	p.turn()
	p.mu.Unlock()
	p.looks.Wait()
}

// turn wakes those who wait for the next workers. The caller holds mu.
func (p *published) turn() {
	if p.turned != nil {
		close(p.turned)
		p.turned = nil
	}
}

// FollowLogs calls emit with what this host's workers write to files: of the attempt that runs
// or ran last and of those after it, or only of that in a round if round is not negative. begin
// is called before the first line of each, with the round, this node's group rank in it, and the
// name of its directory. FollowLogs returns nil when there is nothing more to come, or an error of
// ctx, begin or emit. It may be called concurrently, also before and after Run; a slow emit holds
// nobody up.
func (a *Agent) FollowLogs(ctx context.Context, cfg logs.FollowConfig, round int,
	begin func(round, groupRank int, attempt string) error, emit func(*logs.Chunk) error) error {
	p := &a.published
	var last *attempt
	for {
		p.mu.Lock()
		at, over := p.at, p.over
		passed := round >= 0 && at != nil && (at.round.Round > round || last != nil)
		var part roundPart
		if round >= 0 {
			at, part = p.inRound(round)
		} else {
			at = p.after(last)
		}
		ready := at != nil && (last == nil || at.team.logs != last.team.logs)
		if p.turned == nil && !over {
			p.turned = make(chan struct{})
		}
		turned := p.turned
		p.mu.Unlock()
		switch {
		case ready:
			last = at
			of, groupRank := at.round.Round, at.round.Rank
			if cfg.Part = part.Part; round >= 0 {
				of, groupRank = round, part.groupRank
			}
			if err := begin(of, groupRank, filepath.Base(at.team.logs.Dir())); err != nil {
				return err
			}
			if err := at.team.logs.Follow(ctx, cfg, emit); err != nil {
				return err
			}
			cfg.Lines = -1
		case over || passed || cfg.Once:
			return nil
		default:
			select {
			case <-turned:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// A Worker is a worker of this host, as it is now or was at its end.
type Worker struct {
	Rank, LocalRank, PID int
	Started              time.Time
	Exit                 *process.Exit    // nil while it runs
	Heartbeat            *timer.Heartbeat // its last; nil before the first
	Output               logs.Output
	// Stdout and Stderr are its log files, "" where there is none. Tail are the last
	// lines of a stderr that has no file, without blank ones.
	Stdout, Stderr string
	Tail           []string
}

// Workers returns the last workers that were started, by local rank; none while the
// agent is in a round and has not started any. Workers, Hosts, TimerStats and
// Alive may be called concurrently, also before and after Run.
func (a *Agent) Workers() []Worker {
	a.published.mu.Lock()
	at, group, exits := a.published.at, a.published.group, a.published.exits
	a.published.mu.Unlock()
	if group == nil {
		return nil
	}
	var workers []Worker
	for i, pid := range group.PIDs() {
		sink := at.team.logs.Sink(i)
		w := Worker{
			Rank: at.rank(i), LocalRank: i, PID: pid, Started: at.team.began,
			Heartbeat: a.watchdog.Load().heartbeat(pid), Output: at.team.logs.Output(i),
			Stdout: sink.StdoutPath, Stderr: sink.StderrPath,
		}
		if sink.StderrPath == "" {
			w.Tail = strings.Split(text.Tail(at.team.logs.StderrTail(i), 20, 500, "\n"), "\n")
		}
		if exit, ended := exits[i]; ended {
			w.Exit = &exit
		}
		workers = append(workers, w)
	}
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.LocalRank, b.LocalRank) })
	return workers
}

// A GPU is how busy one of this host's GPUs is.
type GPU = devices.Use

// GPUs returns the GPUs that this job may use, in the order of the local ranks of the workers that by
// convention use them; nil if nothing is known of them. Only the first call waits for nvidia-smi,
// at most for a time.
func (a *Agent) GPUs(wait time.Duration) []GPU { return a.gpus.Read(wait) }

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

// Alive returns when the agent last made progress: now, since an agent that waits for an
// event is not stuck, unless the server of the workers' timers is.
// Source: the alive callback of LocalElasticAgent._setup_healthcheck.
func (a *Agent) Alive() time.Time {
	if w := a.watchdog.Load(); w != nil {
		return w.server.Progress()
	}
	return time.Now()
}

// mostHosts bounds how many hosts' names are looked up; lookInterval is the least time
// between two looks.
const (
	mostHosts    = 256
	lookInterval = 2 * time.Second
)

// Hosts returns the names of the nodes of the round, by group rank, as far as they are
// known; nil where there is no round. A node puts its name into the store when it starts
// its workers. Hosts begins to look up the missing names, for the next call.
func (a *Agent) Hosts() []string {
	p := &a.published
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil {
		return nil
	}
	names := make([]string, p.at.round.WorldSize)
	for i := range names {
		names[i] = p.hosts[i]
	}
	if now := time.Now(); p.group != nil && !p.over && now.Sub(p.looked) >= lookInterval &&
		len(p.hosts) < min(len(names), mostHosts) {
		p.looked = now
		at, known := p.at, maps.Clone(p.hosts)
		p.looks.Go(func() { a.lookForHosts(at, known) })
	}
	return names
}

// lookForHosts adds to known the names that it finds in the store of an attempt, and
// publishes it.
func (a *Agent) lookForHosts(at *attempt, known map[int]string) {
	ctx, cancel := context.WithTimeout(at.run.life, a.cfg.PeerTimeout)
	defer cancel()
	for i := 0; i < at.round.WorldSize && len(known) < mostHosts; i++ {
		if _, ok := known[i]; ok {
			continue
		}
		name, err := a.peers(at).HostOf(ctx, i)
		if err != nil {
			return
		}
		if name != "" {
			known[i] = name
		}
	}
	a.published.mu.Lock()
	defer a.published.mu.Unlock()
	if a.published.at == at {
		a.published.hosts = known
	}
}
