package server

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// A Wish is how many nodes the job is wanted to have. Of two wishes the one with the higher
// Serial counts; 0 is that of the command line. Nodes is 0 where nobody has a wish: then it is
// as many as there may be.
//
// Every node keeps the wish that it has heard last and says it in its Hello, so that the wish
// is lost only with all of them.
type Wish struct {
	Nodes  int   `json:"nodes"`
	Serial int64 `json:"serial,omitempty"`
}

// mostWishes is a Serial that no job comes to. Another host's word may not use up those above it.
const mostWishes = 1 << 30

// bounds are the rules with the wish in place of the most nodes that there may be. PyTorch's
// agents know no wish and join by their own rules, so that there is none while they take part.
// While the rendezvous is suspended a round needs more than half of the nodes that there may be.
func (r *Rendezvous) bounds() state.Rules {
	rules := r.rules
	if most := r.wish.Nodes; most > 0 && !r.hasTorch() && (!r.suspended || 2*most > rules.MaxNodes) {
		rules.MaxNodes = most
	}
	return rules
}

// scale answers a node that has another wish.
func (r *Rendezvous) scale(now time.Time, s *session, nodes int) {
	switch {
	case nodes < r.rules.MinNodes || nodes > r.rules.MaxNodes:
		r.send(s, &Message{Type: Size, Error: "the job cannot have that many hosts"})
	case r.hasTorch():
		r.send(s, &Message{Type: Size, Error: "an agent of PyTorch takes part in the job, which knows no wish for its size; the job has all hosts that it may have"})
	default:
		r.setWish(now, Wish{nodes, min(r.wish.Serial+1, mostWishes)})
	}
}

// hear takes the wish from a Hello, or tells the node of another one.
func (r *Rendezvous) hear(now time.Time, s *session) {
	w := s.hello.Wish
	if w != nil && (w.Serial < 0 || w.Serial > mostWishes) {
		w = nil
	}
	switch {
	case w != nil && w.Nodes >= r.rules.MinNodes && w.Nodes <= r.rules.MaxNodes && (r.wish.Nodes == 0 || w.Serial > r.wish.Serial):
		r.setWish(now, *w)
		return
	case w != nil && w.Serial == 0 && r.wish.Serial == 0 && w.Nodes != r.wish.Nodes:
		r.log.Warn("rendezvous: --want is another one than that of the hosts that came before, which counts", "run_id", r.runID,
			"node", r.name(s.node), "want", w.Nodes, "counts", r.wish.Nodes)
	}
	if r.wish.Nodes > 0 {
		r.send(s, &Message{Type: Size, Wish: &r.wish})
	}
}

func (r *Rendezvous) setWish(now time.Time, w Wish) {
	r.wish = w
	m := &Message{Type: Size, Wish: &w}
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		r.send(r.sessions[id], m)
	}
	r.raise(recheckAll)
	r.settle(now)
}

// resize has nodes leave if there are more than wanted: from a round that is not complete at
// once, from one that is by another round.
func (r *Rendezvous) resize(now time.Time) {
	st := r.state
	excess := len(st.Participants) - r.bounds().MaxNodes
	switch {
	case excess <= 0 || st.Closed || r.rules.MaxNodes == 0:
	case st.Complete && !r.last.toldWaiting:
		if r.last.unannounced {
			r.tellAll() // or they would not know which round it is about
		}
		r.last.toldWaiting = true
		r.tell(rendezvous.Resized, state.Node{}, -1)
	case !st.Complete:
		last := r.participants()
		slices.SortFunc(last, func(a, b *session) int { return -r.before(a, b) })
		for _, s := range last[:min(excess, len(last))] {
			r.do(now, s.node, state.RemoveFromParticipants)
			r.do(now, s.node, state.AddToRedundancyList)
		}
	}
}

// yields says whether a node leaves its place to those who were in the round of a holder that is
// lost: they come back, and it was a spare there.
func (r *Rendezvous) yields(n state.Node) bool {
	s := r.nodes[n]
	return s != nil && s.hello.Spare && !r.history.spares.IsZero()
}

// survivorsBack says whether all are back who can be, as far as only the lost holder is gone.
func (r *Rendezvous) survivorsBack() bool {
	if r.history.lost == nil || len(r.last.expected) == 0 || len(r.last.expected) < r.history.lost.WorldSize-1 {
		return false
	}
	for n := range r.last.expected {
		if _, ok := r.state.Participants[n]; !ok {
			return false
		}
	}
	return true
}

// before orders nodes by who has been longer in the job, without a break: those go on where
// not all can. It begins with those who were in the last round.
func (r *Rendezvous) before(a, b *session) int {
	return cmp.Or(cmp.Compare(r.since(a.node), r.since(b.node)), cmp.Compare(r.turn(a), r.turn(b)), int(a.id-b.id))
}

// since is the round in which a node came into the job.
func (r *Rendezvous) since(n state.Node) int {
	if since, ok := r.last.since[n]; ok && r.last.expected.Has(n) {
		return since
	}
	return math.MaxInt
}
