package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/rendezvous"
)

// stalled is how long gathered lines may make no progress at the end before they are given up:
// the console may be stuck.
const stalled = 30 * time.Second

// gathering copies what tee copies on all hosts to the console of the host with rank 0, if this
// is it (logs.Config.Gather). Each round has a Gather of its own: who has which rank changes.
// Lines come from the hosts' log files, so that nobody waits for a slow console.
type gathering struct {
	run   *logs.Run
	calls rendezvous.Caller // nil: there are no other hosts
	log   *slog.Logger
	agent *agent.Agent // set before it runs
	host  string

	life   context.Context // ends when nobody waits for lines any more
	giveUp context.CancelFunc

	elsewhere context.Context // ends when no other host can be reached any more
	cut       context.CancelCauseFunc

	last *gatheredRound // owned by the agent's goroutine, which calls Observe
	old  sync.WaitGroup // the rounds before, which end
}

// A gatheredRound gathers the lines of one round.
type gatheredRound struct {
	*logs.Gather
	of      *gathering
	round   int
	moved   atomic.Int64 // bytes
	streams sync.WaitGroup
	cancel  context.CancelFunc
	over    chan struct{} // closed when the round is

	mu      sync.Mutex // guards the rest
	attempt string     // its name; "" before its first line
	broken  []string   // why lines of other hosts may be missing
}

// Observe begins to gather when the workers of the host with rank 0 run.
func (g *gathering) Observe(e agent.Event) {
	started, ok := e.What.(agent.WorkersStarted)
	if !ok || started.Err != nil {
		return
	}
	if r := g.last; r != nil && !started.Kept {
		r.mu.Lock()
		r.Late(r.attempt)
		r.mu.Unlock()
	}
	g.leave()
	if e.Ranks.Base != 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	elsewhere, cut := context.WithCancelCause(g.elsewhere)
	r := &gatheredRound{Gather: g.run.Gather(e.Ranks.WorldSize), of: g, round: e.Round.Round, over: make(chan struct{})}
	r.cancel = func() {
		cancel()
		cut(errors.New("none has come for a while, or nobody waits for them"))
	}
	g.last = r
	r.streams.Go(func() { r.own(ctx) })
	for rank := range e.Round.WorldSize {
		if rank != e.Round.Rank {
			r.streams.Go(func() { r.other(elsewhere, rank) })
		}
	}
}

// leave ends the last round, beside what follows.
func (g *gathering) leave() {
	if r := g.last; r != nil {
		g.old.Go(r.finish)
		g.last = nil
	}
}

// finish ends all of it, once all that the workers of all hosts have written is copied. A host
// or a console that is stuck holds it up for a few seconds. With the rendezvous, the other hosts
// are lost.
//
// It ends at once with hurry, and with ctx, unless that has ended before: who stops a job wants
// its last lines, who stops it again does not.
func (g *gathering) finish(ctx context.Context, hurry <-chan struct{}, lost bool) {
	if lost {
		g.cut(errors.New("the rendezvous is lost"))
	}
	stopped := ctx.Done()
	if ctx.Err() != nil {
		stopped = nil
	}
	go func() {
		select {
		case <-hurry:
		case <-stopped:
		case <-g.life.Done():
		}
		g.giveUp()
	}()
	g.leave()
	g.old.Wait()
	g.giveUp()
}

// put takes some of what a worker has written.
func (r *gatheredRound) put(host string, c *logs.Chunk) error {
	r.moved.Add(int64(len(c.Data)))
	return r.Put(host, c)
}

// own gathers the lines of this host.
func (r *gatheredRound) own(ctx context.Context) {
	cfg := logs.FollowConfig{Stdout: true, Stderr: true, Teed: true, Lines: -1}
	err := r.of.agent.FollowLogs(ctx, cfg, r.round, func(_, _ int, attempt string) error {
		r.mu.Lock()
		r.attempt = attempt
		r.mu.Unlock()
		return nil
	}, func(c *logs.Chunk) error { return r.put(r.of.host, c) })
	if err != nil {
		r.failed("of this host", err)
	}
}

// other gathers those of another one.
func (r *gatheredRound) other(ctx context.Context, rank int) {
	q := health.LogQuery{Stdout: true, Stderr: true, Gather: true, Lines: -1, Round: r.round, HostOnly: true}
	host := ""
	err := health.FollowHost(ctx, r.of.calls.Call, rank, q, r.over, func(f *health.LogFrame) error {
		switch f.Kind {
		case "attempt":
			host = f.Host
		case "gone":
			r.of.log.Warn("lines of another host are missing so far: it cannot be reached; trying again", "group_rank", rank, "host", host, "error", f.Why)
		default:
			return r.put(host, &logs.Chunk{Worker: logs.Worker{Rank: f.Rank}, Stderr: f.Kind == "err", Offset: f.Offset, Lost: f.Lost, Data: f.Data})
		}
		return nil
	})
	if err != nil {
		r.failed(fmt.Sprintf("of group rank %d", rank), cmp.Or(context.Cause(ctx), err))
	}
}

func (r *gatheredRound) failed(whose string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, fmt.Sprintf("%s (%v)", whose, err))
}

// finish waits until all hosts have sent the last line of the round and the console has it, or
// nothing has moved for a while.
func (r *gatheredRound) finish() {
	close(r.over)
	all := make(chan struct{})
	go func() {
		r.streams.Wait()
		close(all)
	}()
	ctx, stop := context.WithCancel(r.of.life)
	defer stop()
	ended := make(chan struct{})
	go func() { // ends ctx if nothing moves
		defer close(ended)
		ticker := time.NewTicker(stalled)
		defer ticker.Stop()
		for before := r.moved.Load() + r.Progress(); ; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if now := r.moved.Load() + r.Progress(); now == before {
				stop()
				return
			} else {
				before = now
			}
		}
	}()
	select {
	case <-all:
	case <-ctx.Done():
		r.cancel()
	}
	stats, err := r.Close(ctx)
	r.cancel()
	<-all
	stop()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()
	var what []any
	if stats.LostBytes > 0 {
		what = append(what, "bytes", stats.LostBytes)
	}
	if r.broken != nil {
		what = append(what, "missing", strings.Join(r.broken, ", "))
	}
	if err != nil {
		what = append(what, "error", err)
	}
	if what != nil {
		r.of.log.Warn("gathered lines are missing from this console; the log files on their hosts have them", what...)
	}
}
