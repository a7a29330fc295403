package simulate

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

const runID = "sim"

// sim is one run.
type sim struct {
	queue
	cfg    Config
	rng    *rand.Rand
	server *holder
	hosts  []*host
	byName map[string]*host
	check  checks
	out    *bufio.Writer // nil: no trace

	agents   []*agent
	foreigns []*foreign
	all      []*conn
	conns    int
	pids     int
	masters  map[int]string   // where the workers of each round meet
	seekers  map[int][]func() // who waits to hear that

	living    int           // processes that run
	troubled  time.Duration // when TCP will last have sent again what was lost
	disturbed time.Duration // when something last went wrong or was mended
	pending   int           // things that are yet to happen
	ending    bool
	faults    int
	lost      int
	timeouts  int
	result    Result
	errs      []error

	measured    *server.Message
	buffer      []byte
	decoded     *state.State
	decodedText []byte
}

// Run performs one run. The error names every promise that was broken.
func Run(cfg Config) (*Result, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &sim{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		byName: map[string]*host{}, masters: map[int]string{}, seekers: map[int][]func(){},
	}
	if cfg.Trace != nil {
		s.out = bufio.NewWriter(cfg.Trace)
	}
	s.newServer()
	s.check.s = s
	s.check.reset()
	for range cfg.Nodes {
		s.addHost()
	}
	for i, h := range s.hosts {
		i := i
		s.soon(s.pause(cfg.Arrive), func() { s.start(h, i < cfg.Foreign) })
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
func (s *sim) start(h *host, foreign bool) {
	if h.agent != nil || !h.up || s.ending {
		return
	}
	s.disturbed = s.now
	if s.result.Met == 0 {
		s.result.Started = s.now
	}
	if h.foreign = foreign; foreign {
		s.startForeign(h)
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

// openMaster is what rank 0 does: it makes the place where the workers meet.
func (s *sim) openMaster(h *host, round int) (addr string, port int) {
	port = 30000 + round
	s.masters[round] = fmt.Sprintf("%s:%d", h.name, port)
	seekers := s.seekers[round]
	delete(s.seekers, round)
	for _, found := range seekers {
		found()
	}
	return h.name, port
}

// findMaster waits at the store until somebody has published the place.
func (s *sim) findMaster(p process, round int, found func()) {
	h := s.hostOf(p)
	answer := func() {
		s.after(s.transit(h), func() {
			if h.agent == p {
				found()
			}
		})
	}
	s.after(s.transit(h), func() {
		if s.masters[round] != "" {
			answer()
			return
		}
		s.seekers[round] = append(s.seekers[round], answer)
	})
}

func (s *sim) hostOf(p process) *host {
	switch p := p.(type) {
	case *agent:
		return p.host
	case *foreign:
		return p.host
	}
	panic("a process of no kind")
}

// met notes that an agent's workers run.
func (s *sim) met() {
	if s.check.run++; s.result.Met == 0 && s.check.run == s.check.size {
		s.result.Met, s.result.FirstSize = s.now, s.check.size
		s.result.ToMeet = s.traffic()
	}
}

func (s *sim) traffic() Traffic {
	var t Traffic
	for _, c := range s.all {
		n := c.up.bytes + c.down.bytes
		t.Messages += c.up.messages + c.down.messages
		t.Bytes += n
		t.Most = max(t.Most, n)
	}
	return t
}

func (s *sim) total() {
	r := &s.result
	r.Took, r.Events = s.now, s.steps
	r.Nodes = len(s.agents) + len(s.foreigns)
	r.Rounds, r.Faults, r.Lost, r.TimedOut = s.check.rounds, s.faults, s.lost, s.timeouts
	for _, c := range s.all {
		for _, d := range []struct {
			sum *Traffic
			p   *pipe
		}{{&r.Up, &c.up}, {&r.Down, &c.down}} {
			d.sum.Messages += d.p.messages
			d.sum.Bytes += d.p.bytes
			d.sum.Most = max(d.sum.Most, d.p.bytes)
		}
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
	settle := cfg.Limit + 2*cfg.LastCall + 4*cfg.Stop + 10*time.Second
	end := cfg.Arrive + cfg.During + 20*(settle+cfg.Join)
	var probe func()
	settled := false
	probe = func() {
		if settled = s.pending == 0 && (s.troubled == 0 || s.now > s.troubled+calm) && s.settled(); !settled {
			s.after(probeInterval, probe)
		}
	}
	s.after(0, probe)
	for !settled {
		s.step()
		bound := settle
		if s.starving() {
			bound += cfg.Join + 2*closeTimeout
		}
		if s.cfg.Foreign > 0 {
			bound += readTimeout + cfg.Join // for a rank 0 that has gone before it said where to meet
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

// finish has one agent close the rendezvous and checks that all hear of it.
func (s *sim) finish() {
	s.ending = true
	var first *host
	for _, h := range s.hosts {
		if s.runs(h) && (first == nil || s.rng.IntN(4) == 0) {
			first = h
		}
	}
	for _, h := range s.hosts {
		switch a := h.agent.(type) {
		case *agent:
			if h == first {
				s.trace("%s: its workers have succeeded", h.name)
				a.close("the job has succeeded")
			}
		case *foreign:
			if s.runs(h) {
				a.wait.stop()
				a.lock(func() { a.closeAll("the job has succeeded") })
			}
		}
	}
	// The last messages, and what TCP sends again.
	end := s.now + closeTimeout + s.cfg.Stop + 4*s.cfg.Delay + s.cfg.Jitter + 2*foreignPoll + time.Duration(s.cfg.Loss*float64(time.Minute)) + time.Duration(s.conns)*4*s.cfg.Work
	for len(s.heap) > 0 && s.living > 0 && s.now < end && len(s.errs) == 0 {
		s.queue.step()
	}
	if n := s.living; n > 0 && len(s.errs) == 0 {
		s.fail("%d agents have not heard that the rendezvous is closed: %s", n, s.where())
	}
}

// runs says whether a host's workers run.
func (s *sim) runs(h *host) bool {
	switch a := h.agent.(type) {
	case *agent:
		return a.phase == running
	case *foreign:
		return a.phase == running
	}
	return false
}

// starving says whether there are too few agents for a round.
func (s *sim) starving() bool { return s.living < s.cfg.Min }

// settled says whether every agent is where it should be.
func (s *sim) settled() bool {
	n, run, spares := 0, 0, 0
	for _, h := range s.hosts {
		switch a := h.agent.(type) {
		case nil:
			continue
		case *agent:
			switch {
			case a.phase == running && a.seat.Round.Round == s.check.round:
				run++
			case a.phase == joining && a.seat.Spare:
				spares++
			}
		case *foreign:
			switch {
			case a.phase == running && a.round == s.check.round:
				run++
			case a.phase == joining && a.spare:
				spares++
			}
		}
		n++
	}
	if n < s.cfg.Min {
		return n == 0
	}
	return run == min(n, s.cfg.Max) && run+spares == n && (run == s.check.size || s.cfg.Foreign > 0)
}

// where says what every agent does.
func (s *sim) where() string {
	counts := map[string]int{}
	for _, h := range s.hosts {
		switch a := h.agent.(type) {
		case *agent:
			text := a.phase.String()
			if a.seat.Spare {
				text = "spare"
			} else if a.phase == running {
				text = fmt.Sprintf("in round %d", a.seat.Round.Round)
			}
			counts[text]++
		case *foreign:
			text := a.phase.String()
			if a.spare {
				text = "spare"
			} else if a.phase == running {
				text = fmt.Sprintf("in round %d", a.round)
			}
			counts["foreign "+text]++
		}
	}
	return fmt.Sprint(counts)
}
