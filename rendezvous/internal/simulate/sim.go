package simulate

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

const runID = "sim"

// sim is one run.
type sim struct {
	queue
	cfg    Config
	rng    *rand.Rand
	holder *holder // whom agents connect to: the one that there is, or was last
	old    *holder // the one before, while not all have heard that it is replaced
	hosts  []*host
	byName map[string]*host
	all    []*conn
	pids   int
	out    *bufio.Writer // nil: no trace

	meetings map[roundID]*meeting // of the workers of each round

	rounds      map[roundID]*liveRound // of live jobs
	groups      map[int64]*liveGroup   // by UUID
	memberships int
	late        int // workers that were killed since others waited for them
	gaveUp      int // changes that did not work out

	living    int           // processes that run
	most      int           // how many nodes the old holder knows of, or the job may have
	lone      time.Duration // when at most one round ran last
	troubled  time.Duration // when TCP will last have sent again what was lost
	disturbed time.Duration // when something last went wrong or was mended
	pending   int           // things that are yet to happen
	ending    bool
	result    Result
	errs      []error
	cache     cache
}

// A cache has what was made last of a message and of a state: many get the same.
type cache struct {
	message *server.Message
	text    []byte // the message, as it goes over a connection
	pickled []byte
	state   *state.State // pickled, read
}

// A meeting is where the workers of a round meet: "" until its rank 0 has said so.
type meeting struct {
	addr    string
	seekers []func() // who waits to hear that
}

func (s *sim) meeting(round roundID) *meeting {
	if s.meetings[round] == nil {
		s.meetings[round] = &meeting{}
	}
	return s.meetings[round]
}

// Run performs one run. The error names every promise that was broken.
func Run(cfg Config) (*Result, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &sim{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		byName: map[string]*host{}, meetings: map[roundID]*meeting{}, rounds: map[roundID]*liveRound{}, groups: map[int64]*liveGroup{},
	}
	if cfg.Trace != nil {
		s.out = bufio.NewWriter(cfg.Trace)
	}
	s.newHolder()
	for range cfg.Nodes {
		s.addHost()
	}
	for i, h := range s.hosts {
		s.soon(s.pause(cfg.Arrive), func() { s.start(h, i < cfg.Torch) })
	}
	for range cfg.Faults {
		s.soon(s.pause(cfg.During), s.fault)
	}
	s.live()
	s.finish()
	s.total()
	if s.out != nil {
		s.errs = append(s.errs, s.out.Flush())
	}
	return &s.result, errors.Join(s.errs...)
}

func (s *sim) addHost() *host {
	h := &host{id: len(s.hosts), name: fmt.Sprintf("n%05d", len(s.hosts)), up: true}
	h.latency = s.cfg.Delay/2 + s.pause(s.cfg.Delay)
	if s.cfg.Skew > 0 {
		h.skew = time.Duration(s.rng.Int64N(int64(2*s.cfg.Skew))) - s.cfg.Skew
	}
	s.hosts = append(s.hosts, h)
	s.byName[h.name] = h
	return h
}

// start starts a host's agent.
func (s *sim) start(h *host, torch bool) {
	if h.agent != nil || !h.up || s.ending {
		return
	}
	s.disturbed = s.now
	if s.result.Met == 0 {
		s.result.Started = s.now
	}
	if h.torch = torch; torch {
		s.startTorch(h)
		return
	}
	s.startAgent(h)
}

// pause is a random time up to d.
func (s *sim) pause(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(s.rng.Int64N(int64(d)))
}

// soon makes something happen that the run waits for.
func (s *sim) soon(d time.Duration, do func()) {
	s.pending++
	s.after(d, func() {
		s.pending--
		s.disturbed = s.now
		do()
	})
}

func (s *sim) fail(format string, a ...any) {
	if len(s.errs) < 20 {
		text := fmt.Sprintf(format, a...)
		s.trace("FAULT: %s", text)
		s.errs = append(s.errs, fmt.Errorf("at %v: %s", s.now, text))
	}
}

// openMaster is what rank 0 does: it makes the workers' store.
func (s *sim) openMaster(h *host, round roundID) (addr string, port int) {
	port = 30000 + round.number
	m := s.meeting(round)
	m.addr = fmt.Sprintf("%s:%d", h.name, port)
	seekers := m.seekers
	m.seekers = nil
	for _, found := range seekers {
		found()
	}
	return h.name, port
}

// findMaster waits at the agents' store until somebody has published where that is.
func (s *sim) findMaster(p process, round roundID, found func()) {
	h := p.common().host
	answer := func() {
		s.after(s.transit(h), func() {
			if h.agent == p {
				found()
			}
		})
	}
	s.after(s.transit(h), func() {
		if m := s.meeting(round); m.addr == "" {
			m.seekers = append(m.seekers, answer)
			return
		}
		answer()
	})
}

// met notes that an agent's workers run.
func (v *holder) met() {
	s, k := v.s, v.check
	if k.run++; s.result.Met == 0 && k.run == k.size {
		s.result.Met, s.result.FirstSize = s.now, k.size
		s.result.ToMeet = s.traffic()
	}
}

// add counts what has gone one way over a connection.
func (t *Traffic) add(p *pipe) {
	t.Messages += p.messages
	t.Bytes += p.bytes
	t.Most = max(t.Most, p.bytes)
}

// traffic is all that has been sent, both ways.
func (s *sim) traffic() (t Traffic) {
	for _, c := range s.all {
		t.add(&pipe{messages: c.up.messages + c.down.messages, bytes: c.up.bytes + c.down.bytes})
	}
	return t
}

func (s *sim) total() {
	r := &s.result
	r.Took, r.Events, r.Nodes, r.Rounds = s.now, s.steps, s.pids, s.holder.check.rounds
	r.Memberships, r.Late, r.GaveUp = s.memberships, s.late, s.gaveUp
	for _, c := range s.all {
		r.Up.add(&c.up)
		r.Down.add(&c.down)
	}
	if r.GaveUp > 0 && s.cfg.Inconsistent == 0 {
		s.fail("%d changes did not work out, and no state was inconsistent", r.GaveUp)
	}
}

// calm is how long what TCP has sent again may take to arrive.
const calm = 2 * time.Second

// probeInterval is how often a run looks whether it has settled.
const probeInterval = 100 * time.Millisecond

// mostEvents bounds a run, which takes about a second for each million.
const mostEvents = 50_000_000

// live lets things happen until nothing more is to go wrong and all agents are
// where they should be.
func (s *sim) live() {
	cfg := &s.cfg
	settle := cfg.limit() + 2*cfg.Settings.LastCall + 4*cfg.Stop + 10*time.Second
	end := cfg.Arrive + cfg.During + 20*(settle+cfg.Settings.Join)
	var probe func()
	settled := false
	probe = func() {
		s.alone()
		if settled = s.pending == 0 && (s.troubled == 0 || s.now > s.troubled+calm) && s.settled(); !settled {
			s.after(probeInterval, probe)
		}
	}
	s.after(0, probe)
	for !settled {
		s.step()
		bound := settle
		if s.starving() {
			bound += cfg.Settings.Join + 2*closeTimeout
		}
		if s.cfg.Live {
			bound += 4 * live.Timeout
		}
		if s.cfg.Torch > 0 {
			bound += readTimeout + cfg.Settings.Join // for a rank 0 that has gone before it said where to meet
		}
		if s.pending == 0 && s.now > max(s.disturbed, s.troubled)+bound {
			s.fail("no progress within %v of the last fault: %s", bound, s.where())
			return
		}
		if s.now > end || s.steps > mostEvents {
			s.fail("no end of it: %s", s.where())
			return
		}
	}
	s.trace("settled: %s", s.where())
}

// finish has one agent close the rendezvous and checks that all hear of it. Agents of
// PyTorch all do.
func (s *sim) finish() {
	s.ending = true
	var first *host
	for _, h := range s.hosts {
		if h.is(running) && (first == nil || s.rng.IntN(4) == 0) {
			first = h
		}
	}
	for _, h := range s.hosts {
		switch {
		case h.agent == nil:
		case h.torch:
			h.agent.succeed()
		case h == first:
			s.trace("%s: its workers have succeeded", h.name)
			h.agent.succeed()
		}
	}
	// The last messages, and what TCP sends again.
	end := s.now + closeTimeout + s.cfg.Stop + 4*s.cfg.Delay + s.cfg.Jitter + 2*torchPoll + time.Duration(s.cfg.Loss*float64(time.Minute)) + time.Duration(len(s.all))*4*s.cfg.Work
	for len(s.heap) > 0 && s.living > 0 && s.now < end && len(s.errs) == 0 {
		s.queue.step()
	}
	if n := s.living; n > 0 && len(s.errs) == 0 {
		s.fail("%d agents have not heard that the rendezvous is closed: %s", n, s.where())
	}
}

// starving reports whether there are too few agents for a round.
func (s *sim) starving() bool { return s.living < s.cfg.Min }

// settled reports whether every agent is where it should be.
func (s *sim) settled() bool {
	n, run, spares := 0, 0, 0
	for _, h := range s.hosts {
		if h.agent == nil {
			continue
		}
		n++
		switch round, spare := h.agent.place(); {
		case h.is(running) && round == s.holder.check.round && s.together(h):
			run++
		case h.is(joining) && spare:
			spares++
		}
	}
	if n < s.cfg.Min {
		return n == 0
	}
	return run == min(n, s.cfg.Max) && run+spares == n && (run == s.holder.check.size || s.cfg.Torch > 0)
}

// together reports whether the workers of a host are where they should be.
func (s *sim) together(h *host) bool {
	a, ok := h.agent.(*agent)
	return !ok || a.workers == nil || a.workers.together()
}

// where says what every agent does.
func (s *sim) where() string {
	counts := map[string]int{}
	for _, h := range s.hosts {
		if h.agent == nil {
			continue
		}
		text := h.agent.common().phase.String()
		if round, spare := h.agent.place(); spare {
			text = "spare"
		} else if h.is(running) {
			text = fmt.Sprintf("in round %d", round)
			if !s.together(h) {
				text += ", workers apart"
			}
		}
		if h.torch {
			text = "torch " + text
		}
		counts[text]++
	}
	return fmt.Sprint(counts)
}
