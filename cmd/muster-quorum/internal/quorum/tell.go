package quorum

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// A session is a lease and what lives as long as it.
type session struct {
	id  clientv3.LeaseID
	ttl time.Duration
}

// until is when the lease has run out by the bridge's own clock, if the request
// that last prolonged it was sent at sent: before the servers, which count from
// when that request came, can take it.
func (s *session) until(sent time.Time) time.Time {
	return sent.Add(s.ttl - s.ttl/10)
}

// A view is what the keys of a run said at a revision.
type view struct {
	rev    int64
	closed bool
	leader *pipe.Leader // nil if there is none; Mine is not set
	bridge string       // the leader's
	lease  clientv3.LeaseID
	goesOn bool // the leader's key is another one than in the view before, and nobody else led in between
}

// A teller decides what the agent is told. It has no clock and does no I/O.
type teller struct {
	leader *pipe.Leader     // as last told; nil if gone
	holds  clientv3.LeaseID // its lease
	// its key is gone. It may come back: whose lease ran out while etcd did not answer stands again
	keyless bool
	good    bool      // as last told, if this agent leads: it has the lease that it leads by
	session *session  // the lease in hand
	until   time.Time // when it has run out
	doubted bool      // it has, and whether the servers still have it is not known
	closed  bool
	waiting string
}

// granted takes a new lease, asked for at sent.
func (t *teller) granted(s *session, sent time.Time) {
	t.session, t.until, t.doubted = s, s.until(sent), false
}

// kept prolongs the lease by a request sent at sent, also one that had run out:
// while etcd has no leader no lease ends.
func (t *teller) kept(s *session, sent time.Time) []pipe.Report {
	if t.session != s {
		return nil
	}
	t.until = s.until(sent)
	return t.doubt(false)
}

// doubt takes that the lease has run out, as etcd does not answer, or is good again.
func (t *teller) doubt(doubted bool) []pipe.Report {
	if t.doubted == doubted {
		return nil
	}
	t.doubted = doubted
	return t.lease()
}

// lease says of a leader whether its lease is good, if that is news.
func (t *teller) lease() []pipe.Report {
	if t.leader == nil || !t.leader.Mine {
		return nil
	}
	good := !t.doubted && t.session != nil && t.session.id == t.holds
	if good == t.good {
		return nil
	}
	t.good = good
	return []pipe.Report{{Lease: &good}}
}

// lost gives the lease up.
func (t *teller) lost(s *session) []pipe.Report {
	if t.session != s {
		return nil
	}
	t.session = nil
	return t.lease()
}

// removed takes that the leader's key is gone. Who leads next tells whether the leader
// is, unless nobody will.
func (t *teller) removed() []pipe.Report {
	t.keyless = true
	if t.closed {
		return t.gone()
	}
	return nil
}

// gone says that the leader is no more.
func (t *teller) gone() []pipe.Report {
	if t.leader == nil {
		return nil
	}
	term := t.leader.Term
	t.leader = nil
	return []pipe.Report{{Gone: term}}
}

// saw takes what the keys say.
func (t *teller) saw(s *session, v *view) []pipe.Report {
	if v.closed {
		return t.close()
	}
	if t.closed || v.leader == nil || t.session != s {
		return nil
	}
	t.keyless = false
	// A cluster that began again, with no data, may give a term a second time.
	if t.leader != nil && t.leader.Term == v.leader.Term && (t.holds == v.lease || v.goesOn) {
		t.holds = v.lease
		return t.lease()
	}
	out := t.gone()
	leader := *v.leader
	leader.Mine = v.lease == s.id
	t.leader, t.holds, t.good = &leader, v.lease, true
	out = append(out, pipe.Report{Leader: &leader})
	return append(out, t.lease()...)
}

// close says once that the run was closed.
func (t *teller) close() []pipe.Report {
	if t.closed {
		return nil
	}
	t.closed = true
	out := []pipe.Report{{Closed: true}}
	if t.keyless {
		out = append(out, t.gone()...)
	}
	return out
}

// wait says for what the bridge waits, if that is news; "" is for nothing.
func (t *teller) wait(text string) []pipe.Report {
	if t.waiting == text {
		return nil
	}
	t.waiting = text
	return []pipe.Report{{Waiting: &text}}
}
