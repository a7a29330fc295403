package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/rendezvous"
)

// How often the agent with group rank 0 asks all workers of a job when they came to their collectives: until
// an attempt makes steps, or has so many collectives that the steps cannot be told, for beginTime at most; and then.
// A full recorder of 2,000 collectives takes a worker about 20 ms.
const (
	beginEvery = time.Second
	beginTime  = 5 * time.Minute
	beginCount = 500
	paceEvery  = 15 * time.Second
)

const (
	paceKind    = "muster.pace" // of what it asks the other agents
	maxPace     = 16 << 20      // bytes of an answer
	maxArrivals = 1000          // of a rank and group, in an answer
	maxText     = 300           // bytes of a name in what another agent says of a slow rank
	asksAtOnce  = 64
)

// A pacer finds the rank that makes the others wait, and since when workers make steps.
type pacer struct {
	workers interface { // the agent
		Answers() <-chan struct{}
		Courses(context.Context) (courses map[int]slow.Course, base int)
		Hosts() []string
	}
	caller rendezvous.Caller // nil where others cannot be asked
	times  *timekeeper
	log    *slog.Logger

	mu      sync.Mutex       // guards the rest
	round   *rendezvous.Info // nil while no workers run
	began   time.Time
	steps   bool // this host's workers make steps, or cannot tell
	watches map[string]*slow.Watch
	clocks  map[int]offset // of other agents, by group rank
	now     *slow.Finding  // what the agent with group rank 0 tells the others: nil if nobody is slow
}

// An offset is how far another host's clock is ahead, as it was found at a time, and what is uncertain of it.
type offset struct {
	ahead, uncertain int64
	at               time.Time
}

// drift is by how much clocks go apart at most in a second, in ns.
const drift = 50_000

// better returns the less uncertain of two offsets.
func (o offset) better(newer offset) offset {
	aged := o.uncertain + int64(newer.at.Sub(o.at).Seconds()*drift)
	if o.at.IsZero() || newer.uncertain <= aged {
		return newer
	}
	o.uncertain, o.at = aged, newer.at
	return o
}

// A pacePart is an answer: what a host's workers tell, and when it began and ended to ask them, in ns since 1970 by
// its clock.
type pacePart struct {
	Began    int64           `json:"began"`
	Ended    int64           `json:"ended"`
	Arrivals []slow.Arrivals `json:"arrivals"`
}

func (p *pacer) observe(e agent.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch w := e.What.(type) {
	case agent.WorkersStarted:
		if w.Err == nil {
			p.round, p.began, p.steps = e.Round, e.Time, false
			p.watches, p.clocks = map[string]*slow.Watch{}, map[int]offset{}
		}
	case agent.AttemptEnded, agent.Finished:
		p.round, p.now = nil, nil
	}
}

// run looks until ctx is done, from when a worker can be asked.
func (p *pacer) run(ctx context.Context) {
	select {
	case <-p.workers.Answers():
	case <-ctx.Done():
		return
	}
	for every := beginEvery; sleep.For(ctx, every) == nil; {
		p.mu.Lock()
		round := p.round
		if every = paceEvery; round == nil || !p.steps && time.Since(p.began) < beginTime {
			every = beginEvery
		}
		p.mu.Unlock()
		if round != nil && (round.Rank == 0 || p.caller == nil) {
			ctx, cancel := context.WithTimeout(ctx, paceEvery)
			p.look(ctx, round)
			cancel()
		}
	}
}

// part asks this host's workers.
func (p *pacer) part(ctx context.Context, now *slow.Finding) pacePart {
	part := pacePart{Began: time.Now().UnixNano()}
	courses, base := p.workers.Courses(ctx)
	steps, many := len(courses) > 0, false
	for _, local := range slices.Sorted(maps.Keys(courses)) {
		c := courses[local]
		steps = steps && c.Stepping > 0
		for _, a := range c.Arrivals {
			many = many || len(a.At) > beginCount
			skip := max(0, len(a.At)-maxArrivals)
			a.First, a.At = a.First+int64(skip), a.At[skip:]
			part.Arrivals = append(part.Arrivals, a)
		}
	}
	p.times.course(courses, base, now)
	p.mu.Lock()
	p.steps = steps || many
	p.mu.Unlock()
	part.Ended = time.Now().UnixNano()
	return part
}

// answer answers the agent with group rank 0.
func (p *pacer) answer(ctx context.Context, request []byte) ([]byte, error) {
	var now *slow.Finding
	if err := json.Unmarshal(request, &now); err != nil {
		return nil, err
	}
	text.Each(now, func(s string) string { return text.Line(s, maxText) })
	p.mu.Lock()
	running := p.round
	p.mu.Unlock()
	p.tell(running, now)
	return json.Marshal(p.part(ctx, now))
}

// ask asks another agent, and moves its times to this host's clock.
func (p *pacer) ask(ctx context.Context, rank int, request []byte) (part pacePart, err error) {
	began := time.Now().UnixNano()
	body, err := p.caller.Ask(ctx, rank, paceKind, request, maxPace)
	ended := time.Now().UnixNano()
	if err == nil {
		err = json.Unmarshal(body, &part)
	}
	if err != nil {
		return part, err
	}
	found := offset{(part.Began - began + part.Ended - ended) / 2, (ended - began + part.Began - part.Ended) / 2, time.Now()}
	p.mu.Lock()
	found = p.clocks[rank].better(found)
	p.clocks[rank] = found
	p.mu.Unlock()
	for i := range part.Arrivals {
		a := &part.Arrivals[i]
		a.Error = time.Duration(found.uncertain)
		for k := range a.At {
			if a.At[k] != 0 {
				a.At[k] -= found.ahead
			}
		}
	}
	return part, nil
}

// look asks all workers which rank makes the others wait.
func (p *pacer) look(ctx context.Context, round *rendezvous.Info) {
	p.mu.Lock()
	now, watches := p.now, p.watches
	p.mu.Unlock()
	groups, failed := map[string][]slow.Arrivals{}, false
	request, _ := json.Marshal(now)
	hosts, place := p.workers.Hosts(), map[int]string{}
	for i, part := range parallel.Map(round.WorldSize, asksAtOnce, func(i int) pacePart {
		if i == round.Rank {
			return p.part(ctx, now)
		} else if p.caller == nil {
			return pacePart{}
		}
		part, _ := p.ask(ctx, i, request) // without an answer there are no arrivals
		return part
	}) {
		failed = failed || len(part.Arrivals) == 0
		for _, a := range part.Arrivals {
			groups[a.Group] = append(groups[a.Group], a)
			if i < len(hosts) {
				place[a.Rank] = hosts[i]
			}
		}
	}
	if failed || ctx.Err() != nil {
		return
	}
	var next *slow.Finding
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		if watches[name] == nil {
			watches[name] = &slow.Watch{}
		}
		watches[name].Add(groups[name])
		if f := watches[name].Slow(); f != nil && (next == nil || prefers(now, f, next)) {
			named := *f
			named.Host, next = place[f.Rank], &named
		}
	}
	p.tell(round, next)
}

// prefers reports whether f rather than g is told, of two groups: the rank of now, or that for which they wait longer.
func prefers(now, f, g *slow.Finding) bool {
	if now != nil && (f.Rank == now.Rank) != (g.Rank == now.Rank) {
		return f.Rank == now.Rank
	}
	return f.Wait > g.Wait
}

// tell takes over what is known now, and says in the log if another rank begins to make the others wait, or it ends.
func (p *pacer) tell(round *rendezvous.Info, now *slow.Finding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if round == nil || p.round != round {
		return
	}
	before := p.now
	p.now = now
	switch {
	case now != nil && (before == nil || before.Rank != now.Rank):
		p.log.Warn(fmt.Sprintf("%s comes last in %s", now.Who(), now), "group", now.Group)
	case now == nil && before != nil:
		p.log.Warn(fmt.Sprintf("the others no longer wait for %s", before.Who()), "group", before.Group)
	}
}

// finding is the slow rank; nil if there is none.
func (p *pacer) finding() *slow.Finding {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// slow is the text about the slow rank; "" if there is none.
func (p *pacer) slow() string {
	if f := p.finding(); f != nil {
		return fmt.Sprintf("%s comes last in %s", f.Who(), f)
	}
	return ""
}
