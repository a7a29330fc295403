package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/http10"
)

// A server with Config.Call shows the whole job: it asks the agents of the other hosts for
// their States, and passes on what is meant for them. What they are asked has scope=host, so
// that no agent asks on behalf of another.

const (
	askTime     = 2 * time.Second // that another agent has to answer
	askPause    = 100 * time.Millisecond
	othersFresh = time.Second     // how old its answer may be
	othersOld   = 5 * time.Second // beyond that, it says nothing about how a host is
	firstWait   = time.Second     // how long a view waits for all hosts if it has only such answers, or none
	askedAtOnce = 1024            // all of a large job: one that hangs keeps its place until the limit
	// mostAsked is how many agents are asked in one go: of more, those that were not for the
	// longest time. So a look at a large job costs no more than one at 100 hosts.
	mostAsked = 128
	// maxAnswer bounds an answer, in bytes: a State of 500 workers is smaller.
	maxAnswer = 4 << 20
)

// others are what the other hosts of a round have said.
type others struct {
	jobstate.Others
	began time.Time // when they were asked
	round int
}

// wholeJob reports whether a request is about all hosts.
func (s *Server) wholeJob(r *http.Request) bool {
	return s.cfg.Call != nil && r.URL.Query().Get("scope") != "host"
}

// ask sends a request to the agent of another host.
func (v *jobView) ask(ctx context.Context, rank int, method, path string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	call := v.cfg.Call
	if strings.HasPrefix(path, "/v1/logs?") {
		call = v.cfg.CallToRead
	}
	for {
		conn, err := call(ctx, rank)
		if err != nil || conn == nil {
			return nil, cmp.Or(err, errNoConn)
		}
		body, err := http10.Ask(ctx, conn, method, path, maxAnswer)
		conn.Close()
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		_, answered := errors.AsType[*http10.StatusError](err)
		// One that is about to leave takes a call, and hangs up.
		if err == nil || answered || !strings.HasPrefix(path, stopPath) || sleep.For(ctx, askPause) != nil {
			return body, err
		}
	}
}

// askEach sends a request to agents of other hosts side by side, and returns when all have
// answered, or failed to.
func (v *jobView) askEach(ctx context.Context, ranks []int, method, path string, limit time.Duration,
	said func(rank int, body []byte, err error)) {
	var mu sync.Mutex
	parallel.Map(len(ranks), askedAtOnce, func(i int) error {
		body, err := v.ask(ctx, ranks[i], method, path, limit)
		mu.Lock()
		defer mu.Unlock()
		said(ranks[i], body, err)
		return err
	})
}

// otherRanks returns the group ranks of the other hosts of the round.
func (v *jobView) otherRanks(ctx context.Context) []int {
	if own, _ := v.state.get(ctx, v.patience); own != nil && len(own.source.Hosts) > 0 {
		var ranks []int
		for _, h := range own.source.Hosts {
			if h.GroupRank != own.source.Host.GroupRank {
				ranks = append(ranks, h.GroupRank)
			}
		}
		return ranks
	}
	o, _ := v.others.get(ctx, v.patience+askTime)
	if o == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(o.Heard))
}

// fetchOthers asks the other hosts. It is called by one goroutine at a time.
func (v *jobView) fetchOthers(ctx context.Context) (*others, error) {
	own, _ := v.state.get(ctx, v.patience)
	if own == nil {
		return nil, errors.New("the state of this host is not known")
	}
	now := others{began: time.Now(), round: own.source.Job.Round, Others: jobstate.Others{Heard: map[int]jobstate.Heard{}}}
	afresh := now.began.Sub(v.last.began) > v.old-v.patience-firstWait // when a view ends that begins now
	hosts := own.source.Hosts
	if len(hosts) == 0 { // it waits for a round; there may be one without it
		body, err := v.ask(ctx, 0, "GET", "/v1/state?scope=host", askTime)
		first := jobstate.Hear(0, body, err)
		if first.State == nil {
			return &now, nil
		}
		now.Hosts, now.round = first.State.Hosts, first.State.Job.Round
		hosts = now.Hosts
		now.Heard[0] = first
	}
	var ranks []int
	for i := range hosts {
		rank := hosts[i].GroupRank
		if rank == own.source.Host.GroupRank || !now.Heard[rank].At.IsZero() {
			continue
		}
		h := jobstate.Heard{}
		if now.round == v.last.round {
			h = v.last.Heard[rank]
		}
		if afresh || h.State == nil && h.Problem == nil {
			h.Problem = errNotYet
		}
		now.Heard[rank] = h
		ranks = append(ranks, rank)
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return now.Heard[a].At.Compare(now.Heard[b].At) })
	ranks = ranks[:min(len(ranks), mostAsked)]
	if afresh {
		v.early.Store(now.clone())
	}
	v.askEach(ctx, ranks, "GET", "/v1/state?scope=host", askTime, func(rank int, body []byte, err error) {
		h := jobstate.Hear(rank, body, err)
		if h.State == nil {
			h.State = now.Heard[rank].State
		}
		now.Heard[rank] = h
		if afresh { // so that a reader does not wait for a host that hangs
			v.early.Store(now.clone())
		}
	})
	v.last = now
	return now.clone(), nil
}

// clone returns a copy that does not change any more.
func (o *others) clone() *others {
	c := *o
	c.Heard = maps.Clone(o.Heard)
	return &c
}

var errNotYet = errors.New("no answer yet")
var errNoConn = errors.New("health: Config.Call, or CallToRead, returned neither a connection nor an error")

// whatOthersSay returns what other hosts have said not long ago, and of those that hang what they
// said before, with that problem.
func (v *jobView) whatOthersSay(ctx context.Context) jobstate.Others {
	o, at := v.others.get(ctx, v.patience)
	if time.Since(at) > v.old {
		o, at = v.others.get(ctx, firstWait)
	}
	if time.Since(at) <= v.old {
		return o.Others
	}
	if early := v.early.Load(); early != nil && early.began.After(at) {
		return early.Others
	}
	if o == nil {
		return jobstate.Others{}
	}
	o = o.clone() // they are asked late, as on a busy machine
	for rank, h := range o.Heard {
		h.Problem = errNotYet
		o.Heard[rank] = h
	}
	return o.Others
}

// fetchJob makes a view of the whole job.
func (v *jobView) fetchJob(ctx context.Context) (*snapshot, error) {
	own, _ := v.state.get(ctx, v.patience)
	if own == nil {
		return nil, errors.New("the state of this host is not known")
	}
	return v.newSnapshot(own.source, v.whatOthersSay(ctx)), nil
}

// view returns what a request is to see: the whole job, or this host.
func (s *Server) view(r *http.Request) *snapshot {
	if !s.wholeJob(r) {
		snap, _ := s.shown.state.get(r.Context(), s.shown.patience)
		return snap
	}
	// What it is made of takes 2*patience+firstWait at most, and longer on a busy machine.
	snap, _ := s.shown.job.get(r.Context(), 2*s.shown.patience+2*firstWait)
	return snap
}

// passOn asks the agent of another host for the end of a log, as this one was asked.
func (s *Server) passOn(r *http.Request, rank int) reply {
	q := r.URL.Query()
	q.Del("follow")
	q.Set("scope", "host")
	body, err := s.shown.ask(r.Context(), rank, http.MethodGet, r.URL.Path+"?"+q.Encode(), askTime)
	refused, ok := errors.AsType[*http10.StatusError](err)
	switch {
	case ok:
		status, _ := strconv.Atoi(refused.Status)
		return textReply(max(status, 400), "%s", refused.Said)
	case err != nil:
		return textReply(http.StatusBadGateway, "the host with group rank %d cannot be asked: %v", rank, err)
	}
	return reply{http.StatusOK, plain, body}
}
