package health

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/pyjson"
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
	// maxElements bounds all lists of a State together: 1,000 workers have 16 lines each.
	maxElements = 100_000
)

// What one of the other hosts has said.
type heard struct {
	at      time.Time // when it was asked last; zero: not yet
	state   *State    // its last; nil: none
	problem error     // why there is no newer one
}

// others are what the other hosts of a round have said, by group rank.
type others struct {
	began time.Time // when they were asked
	round int
	hosts []Host // of the round, where the answering host is not in it
	heard map[int]heard
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
		if err != nil {
			return nil, err
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
	return slices.Sorted(maps.Keys(o.heard))
}

// fetchOthers asks the other hosts. It is called by one goroutine at a time.
func (v *jobView) fetchOthers(ctx context.Context) (*others, error) {
	own, _ := v.state.get(ctx, v.patience)
	if own == nil {
		return nil, errors.New("the state of this host is not known")
	}
	now := others{began: time.Now(), round: own.source.Job.Round, heard: map[int]heard{}}
	afresh := now.began.Sub(v.last.began) > v.old-v.patience-firstWait // when a view ends that begins now
	hosts := own.source.Hosts
	if len(hosts) == 0 { // it waits for a round; there may be one without it
		body, err := v.ask(ctx, 0, "GET", "/v1/state?scope=host", askTime)
		first := heardFrom(0, body, err)
		if first.state == nil {
			return &now, nil
		}
		now.hosts, now.round = first.state.Hosts, first.state.Job.Round
		hosts = now.hosts
		now.heard[0] = first
	}
	var ranks []int
	for i := range hosts {
		rank := hosts[i].GroupRank
		if rank == own.source.Host.GroupRank || !now.heard[rank].at.IsZero() {
			continue
		}
		h := heard{}
		if now.round == v.last.round {
			h = v.last.heard[rank]
		}
		if afresh {
			h.problem = errNotYet
		}
		now.heard[rank] = h
		ranks = append(ranks, rank)
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return now.heard[a].at.Compare(now.heard[b].at) })
	ranks = first(ranks, mostAsked)
	if afresh {
		v.early.Store(now.clone())
	}
	v.askEach(ctx, ranks, "GET", "/v1/state?scope=host", askTime, func(rank int, body []byte, err error) {
		h := heardFrom(rank, body, err)
		if h.state == nil {
			h.state = now.heard[rank].state
		}
		now.heard[rank] = h
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
	c.heard = maps.Clone(o.heard)
	return &c
}

var errNotYet = errors.New("no answer yet")

// whatOthersSay returns what other hosts have said not long ago, and of those that hang what they
// said before, with that problem; nil if there is nothing.
func (v *jobView) whatOthersSay(ctx context.Context) *others {
	o, at := v.others.get(ctx, v.patience)
	if time.Since(at) > v.old {
		o, at = v.others.get(ctx, firstWait)
	}
	if time.Since(at) <= v.old {
		return o
	}
	if early := v.early.Load(); early != nil && early.began.After(at) {
		return early
	}
	if o == nil {
		return nil
	}
	o = o.clone() // they are asked late, as on a busy machine
	for rank, h := range o.heard {
		h.problem = errNotYet
		o.heard[rank] = h
	}
	return o
}

// heardFrom is what one host has said when it was asked for its State.
func heardFrom(rank int, body []byte, err error) heard {
	h := heard{at: time.Now(), problem: err}
	if err == nil {
		if h.state, h.problem = ParseState(body); h.problem == nil && h.state.Host.GroupRank != rank {
			h.state, h.problem = nil, fmt.Errorf("it is not in this round (its group rank is %d)", h.state.Host.GroupRank)
		} else if h.problem == nil {
			h.state.clean()
			h.state.shift(h.at.Sub(h.state.Time))
		}
	}
	return h
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

// with adds what other hosts have said to a State, which is the caller's alone.
func (s *State) with(o *others) {
	for i := range s.Workers {
		s.Workers[i].Host, s.Workers[i].GroupRank = s.Host.Name, s.Host.GroupRank
	}
	if o == nil {
		return
	}
	if o.hosts != nil {
		s.Hosts = slices.Clone(o.hosts)
	} else {
		s.Hosts = slices.Clone(s.Hosts)
	}
	told := o.hosts == nil
	for _, rank := range slices.Sorted(maps.Keys(o.heard)) {
		h := o.heard[rank]
		if h.state != nil {
			s.Add(h.state)
			if !told && h.problem == nil {
				s.history(h.state)
				told = true
			}
		}
		if h.problem != nil {
			s.doubt(rank)
		}
		for i := range s.Hosts {
			if at := &s.Hosts[i]; at.GroupRank != rank {
				continue
			} else if at.Problem = ""; h.problem != nil {
				at.Problem = h.problem.Error()
			} else if h.state == nil {
				at.Problem = errNotYet.Error()
			}
		}
	}
	s.bound()
}

// Add adds the workers, timers and the host of another host's State, which it does not change,
// unless they are there already. Times are taken as they are.
func (s *State) Add(other *State) {
	has := func(rank int) bool {
		return slices.ContainsFunc(s.Workers, func(w Worker) bool { return w.Rank == rank })
	}
	for _, w := range other.Workers {
		if w.Host == "" {
			w.Host, w.GroupRank = other.Host.Name, other.Host.GroupRank
		}
		if !has(w.Rank) {
			s.Workers = append(s.Workers, w)
		}
	}
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.GroupRank == other.Host.GroupRank {
			name, state := h.Name, h.State
			*h = other.Host
			h.Name, h.State = cmp.Or(h.Name, name), cmp.Or(h.State, state)
		}
	}
	s.LiveTimers += other.LiveTimers
}

// history takes over how the job is, and what has happened to it, from a host that has workers of it.
func (s *State) history(of *State) {
	j := &of.Job
	s.Job.State, s.Job.Round, s.Job.Restarts, s.Job.WorldSize = j.State, j.Round, j.Restarts, j.WorldSize
	s.Timeline, s.Failures = of.Timeline[max(0, len(of.Timeline)-maxTimeline):], first(of.Failures, maxFailures)
}

// doubt says that nobody knows any more how a host and its workers are.
func (s *State) doubt(groupRank int) {
	for i := range s.Workers {
		if w := &s.Workers[i]; w.GroupRank == groupRank && w.Exit == nil {
			w.State, w.Usage, w.GPU = string(agent.Unknown), Usage{}, nil
		}
	}
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.GroupRank == groupRank && h.State != "" {
			h.State = string(agent.Unknown)
		}
	}
}

// bound keeps a State of many hosts small.
func (s *State) bound() {
	slices.SortStableFunc(s.Workers, func(a, b Worker) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.GroupRank, b.GroupRank))
	})
	s.Workers = first(s.Workers, maxJobWorkers)
	if len(s.Workers) <= maxWorkers {
		return
	}
	for i := range s.Workers { // the last lines of each host are at /v1/state?scope=host there, and in /v1/logs
		w := &s.Workers[i]
		w.StdoutLines, w.StderrLines = w.StdoutLines[max(0, len(w.StdoutLines)-1):], nil
	}
}

// shift moves all times of another host to this host's clock.
func (s *State) shift(by time.Duration) {
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
			fit(t)
		}
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		move(&w.Started)
		move(&w.LastOutput)
		if w.Exit != nil {
			move(&w.Exit.Time)
		}
		if w.Heartbeat != nil {
			move(&w.Heartbeat.Time)
		}
	}
	for i := range s.Timeline {
		move(&s.Timeline[i].Time)
	}
	for i := range s.Failures {
		f := &s.Failures[i]
		move(&f.Time)
		move(&f.Started)
		move(&f.FailedAt)
		move(&f.Ended)
	}
}

// ParseState reads the JSON of a State. A list of many small entries would take a hundred times
// the memory of its text: it is counted before, and one of more than 10,000 is refused, as are
// lists of more than 100,000 together, those within others too, and a text without a version or
// with a later one than StateVersion.
func ParseState(body []byte) (*State, error) {
	var brief struct {
		Version                            int
		Workers, Hosts, Timeline, Failures []struct{}
	}
	if outer, inner := pyjson.Elements(body); outer+inner > maxElements {
		return nil, fmt.Errorf("the answer is not a state of a job: it has lists of more than %d entries in all", maxElements)
	}
	if err := json.Unmarshal(body, &brief); err != nil {
		return nil, fmt.Errorf("the answer is not a state of a job: %w", err)
	}
	switch n := max(len(brief.Workers), len(brief.Hosts), len(brief.Timeline), len(brief.Failures)); {
	case brief.Version < 1:
		return nil, errors.New("the answer is not a state of a job: it has no version")
	case brief.Version != StateVersion:
		return nil, fmt.Errorf("the agent is another release of muster (state version %d, this one knows %d); use that "+
			"release's muster", brief.Version, StateVersion)
	case n > maxHosts:
		return nil, fmt.Errorf("the answer is not a state of a job: it has a list of more than %d entries", maxHosts)
	}
	state := &State{}
	if err := json.Unmarshal(body, state); err != nil {
		return nil, fmt.Errorf("the answer is not a state of a job: %w", err)
	}
	return state, nil
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
