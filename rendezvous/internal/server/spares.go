package server

import "github.com/muster-run/muster/rendezvous/internal/state"

// yields reports whether a node leaves its place to those who were in the round of a holder that is
// lost: they come back, and it was a spare there.
func (r *Rendezvous) yields(n state.Node) bool {
	s := r.sessions.of[n]
	return s != nil && s.hello.Spare && !r.history.spares.IsZero()
}

// survivorsBack reports whether all are back who can be, as far as only the lost holder is gone.
func (r *Rendezvous) survivorsBack() bool {
	lost, expected := r.history.lost, len(r.last.expected)
	return lost != nil && expected > 0 && expected >= lost.WorldSize-1 && r.last.expectedIn(r.state.Participants)
}
