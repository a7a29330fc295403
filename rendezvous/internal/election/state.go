package election

import (
	"errors"
	"fmt"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// A report is what a child said, or that it is no more.
type report struct {
	from  *minder
	said  *pipe.Report
	ended bool  // the child is no more
	final error // and will not be started again, because of this
}

// listen takes the children's reports, until Close.
func (e *Election) listen() {
	var w waits
	for r := range e.reports {
		switch {
		case r.from == e.member:
			e.onMember(&w, &r)
		default:
			e.onBridge(&w, &r)
		}
		if text, news := w.text(e.member != nil); news {
			e.cfg.OnWaiting(text)
		}
	}
}

// waits is for what the children wait.
type waits struct {
	bridge, member string
	ready          bool // the quorum serves, or the member does
	last           string
}

// text is what to tell, and whether it is news. The member knows best what is
// missing; until it says so or the quorum serves, that the bridge cannot reach it is no news.
func (w *waits) text(hasMember bool) (string, bool) {
	text := w.bridge
	if hasMember && (w.member != "" || !w.ready) {
		text = w.member
	}
	news := text != w.last
	w.last = text
	return text, news
}

func (e *Election) onMember(w *waits, r *report) {
	switch {
	case r.final != nil:
		w.member = fmt.Sprintf("this host's member of the quorum does not run: %v", r.final)
		e.logger.Error("the quorum has one member fewer", "error", r.final, "node", e.cfg.Member.Name, "run_id", e.cfg.RunID)
		if len(e.cfg.Member.Members) == 1 {
			e.fail(r.final)
		}
	case r.ended:
		w.ready, w.member = false, ""
	case r.said.Ready:
		w.ready = true
		e.logger.Info("this host's member of the quorum serves", "node", e.cfg.Member.Name, "run_id", e.cfg.RunID)
	case r.said.Waiting != nil:
		w.member = *r.said.Waiting
	}
}

func (e *Election) onBridge(w *waits, r *report) {
	switch {
	case r.final != nil:
		e.fail(r.final)
	case r.ended:
		e.lostMine()
	case r.said.Leader != nil:
		e.lead(*r.said.Leader)
		w.ready, w.member = true, "" // the quorum serves, whether or not this host's member has come to say so
	case r.said.Gone != 0:
		e.lost(r.said.Gone)
	case r.said.Lease != nil:
		e.forgetLease()
		e.lease <- *r.said.Lease // which has room: nobody else sends
	case r.said.Closed:
		e.fail(ErrClosed)
	case r.said.Waiting != nil:
		w.bridge = *r.said.Waiting
	}
}

// lead takes a new leader, in place of the one before.
func (e *Election) lead(l pipe.Leader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader != nil && *e.leader == l {
		return // a bridge that was started again tells what is known
	}
	e.drop()
	e.leader, e.gone = &l, make(chan struct{})
	e.change()
}

// lost takes that the leader of a term is gone.
func (e *Election) lost(term int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader != nil && e.leader.Term == term {
		e.drop()
		e.change()
	}
}

// lostMine gives up a leadership that no bridge watches over.
func (e *Election) lostMine() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader != nil && e.leader.Mine {
		e.drop()
		e.change()
	}
}

// fail ends the election for this agent. The leader of a run that was closed stays
// until its key goes: others may still have to hear from it how the job ended.
func (e *Election) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !errors.Is(err, ErrClosed) {
		e.drop()
	}
	if e.err == nil {
		e.err = err
	}
	e.change()
}

// drop forgets the leader. The caller has locked.
func (e *Election) drop() {
	e.forgetLease()
	if e.leader != nil {
		close(e.gone)
		e.leader, e.gone = nil, nil
	}
}

// forgetLease drops what nobody has taken from Lease.
func (e *Election) forgetLease() {
	select {
	case <-e.lease:
	default:
	}
}

// change wakes who waits in Leader. The caller has locked.
func (e *Election) change() {
	close(e.changed)
	e.changed = make(chan struct{})
}
