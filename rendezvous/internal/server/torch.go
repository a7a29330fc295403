package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// Text returns the state as torch nodes read it, pickled and in base64, and
// whether that is not what Text or Adopt had last.
//
// Nodes with a session have sent no heartbeat; the text shows them as alive, by
// the clock of the torch node that is furthest ahead.
func (r *Rendezvous) Text(now time.Time) (text []byte, changed bool) {
	st := r.state
	clock := r.torch.Clock(now)
	for n := range r.sessions.of {
		if last, known := st.LastHeartbeats[n]; known && clock.Sub(last) >= r.rules.KeepAliveInterval {
			st.LastHeartbeats[n] = clock
			r.torch.stale = true
		}
	}
	if !r.torch.stale {
		return r.torch.text, false
	}
	if r.refusesTorch() {
		st = st.Clone()
		st.Closed = true // to them
	}
	if st.Closed && len(st.WaitList) == 0 && r.torch.any() {
		// While workers run PyTorch's agents only look for nodes that wait. They then
		// stop their workers and find that there is no next round.
		st = st.Clone()
		st.WaitList.Add(state.Node{Addr: "closed"})
	}
	r.torch.text, r.torch.stale = pickle.EncodeText(st), false
	return r.torch.text, true
}

// refusesTorch says that torch nodes cannot join, since their workers could not use the store of
// the others' hosts. Those that were there before the others stay.
func (r *Rendezvous) refusesTorch() bool { return r.live && !r.torch.any() }

// Adopt takes over what a torch node has written in place of Text's last result.
// What no node can have meant is refused: the old state stays.
func (r *Rendezvous) Adopt(now time.Time, text []byte) {
	r.torch.stale = true
	st, err := pickle.DecodeText(text)
	if err == nil && st == nil {
		return // "no state yet", while there is one
	}
	if err == nil {
		err = r.check(st)
	}
	if err != nil {
		r.badState.Warn(r.log, "rendezvous: a node wrote an invalid state; ignoring it",
			"states", "run_id", r.runID, "error", err)
		return
	}
	r.adopt(now, st)
	r.settle(now)
}

// check refuses states that the nodes' rules never lead to. Ranks are contiguous
// when a round becomes complete; those who leave it afterwards leave gaps.
func (r *Rendezvous) check(st *state.State) error {
	if st.Round < 0 || st.Round > mostRounds {
		return fmt.Errorf("round %d", st.Round)
	}
	if !st.Complete {
		return nil
	}
	fresh := !r.state.Complete || r.state.Round != st.Round
	seen := make(map[int]bool, len(st.Participants))
	for n, rank := range st.Participants {
		if rank < 0 || seen[rank] || fresh && r.hasSession(n) && rank >= len(st.Participants) {
			return fmt.Errorf("rank %d of node %s among %d participants", rank, n, len(st.Participants))
		}
		seen[rank] = true
	}
	if len(seen) == 0 {
		return errors.New("complete without a participant")
	}
	return nil
}

func (r *Rendezvous) adopt(now time.Time, st *state.State) {
	old := r.state
	r.torch.Fix(now, st, old.Deadline, r.rules.LastCall)
	r.state = st
	r.torch.See(now, st, r.hasSession)
	r.holdOpen(now, old.Deadline)
	r.raise(recheckAll)
	if st.Complete && (!old.Complete || st.Round != old.Round) {
		r.completed(now)
	}
	if st.Closed && !old.Closed {
		for _, s := range r.participants() {
			if !s.joining {
				r.send(s, &Message{Type: Closed})
			}
		}
		return
	}
	if st.Round == old.Round && old.Complete {
		r.tellRemoved(old)
	}
	if st.Complete && len(st.WaitList) > len(old.WaitList) {
		for n := range st.WaitList {
			if !old.WaitList.Has(n) {
				r.call(now, n)
				break
			}
		}
	}
}

// holdOpen makes a last call that has just begun long enough for torch nodes that
// wait: they look only now and then whether there is a round to join, and if it were
// complete by then, all would have to start again for them. before is the
// deadline that there was before.
func (r *Rendezvous) holdOpen(now, before time.Time) {
	st := r.state
	least := r.torch.Clock(now).Add(2 * TorchLook)
	if st.Deadline.IsZero() || st.Deadline.Equal(before) || !st.Deadline.Before(least) {
		return
	}
	for n := range st.WaitList {
		if !r.hasSession(n) {
			st.Deadline = least
			return
		}
	}
}

// tellRemoved tells of participants that a torch node has removed: itself, or
// one that it counts as dead.
func (r *Rendezvous) tellRemoved(old *state.State) {
	for _, n := range old.Nodes() {
		rank := old.Participants[n]
		if _, stays := r.state.Participants[n]; stays {
			continue
		}
		if s := r.sessions.of[n]; s != nil {
			delete(r.last.expected, n)
			r.send(s, &Message{Type: Change, Kind: rendezvous.Evicted, Rank: -1})
		} else if !r.state.WaitList.Has(n) {
			r.tell(rendezvous.NodeLeft, n, rank)
		}
	}
}

// mostNamed is how many dead torch nodes get a line of the log each, and how many hosts a line names. A
// stranger can write any number of them into the state.
const mostNamed = 100

// dropTorch drops torch nodes that are dead.
func (r *Rendezvous) dropTorch(now time.Time) {
	for _, n := range r.torch.Silent(now, r.torch.silence) {
		if r.torch.dropped++; r.torch.dropped <= mostNamed {
			r.log.Warn("rendezvous: node has not been heard from", "run_id", r.runID, "node", n.Addr, "for", r.torch.silence)
		} else {
			r.unheard.Warn(r.log, "rendezvous: node has not been heard from", "nodes", "run_id", r.runID, "node", n.Addr,
				"for", r.torch.silence)
		}
		r.remove(now, n, rendezvous.NodeLost)
	}
}

func (r *Rendezvous) hasSession(n state.Node) bool { return r.sessions.of[n] != nil }
