package quorum

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-run/muster/internal/pipe"
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
	lease  clientv3.LeaseID
}

// A teller decides what the agent is told. It has no clock and does no I/O.
type teller struct {
	leader  *pipe.Leader     // as last told; nil if gone
	holds   clientv3.LeaseID // its lease
	session *session         // the lease in hand
	until   time.Time        // when it has run out
	doubted bool             // it has, and whether the servers still have it is not known
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

// lease says of a leader whether its lease is good.
func (t *teller) lease() []pipe.Report {
	if t.leader == nil || !t.leader.Mine {
		return nil
	}
	good := !t.doubted
	return []pipe.Report{{Lease: &good}}
}

// lost gives the lease up.
func (t *teller) lost(s *session) []pipe.Report {
	if t.session != s {
		return nil
	}
	t.session = nil
	if t.leader != nil && t.leader.Mine {
		return t.gone(t.leader.Term)
	}
	return nil
}

// gone says that the leader of a term is no more.
func (t *teller) gone(term int64) []pipe.Report {
	if t.leader == nil || t.leader.Term != term {
		return nil
	}
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
	mine := v.lease == s.id
	// A cluster that began again, with no data, may give a term a second time.
	if t.leader != nil && t.leader.Term == v.leader.Term && t.holds == v.lease {
		return nil
	}
	var out []pipe.Report
	if t.leader != nil {
		out = t.gone(t.leader.Term)
	}
	leader := *v.leader
	leader.Mine = mine
	t.leader, t.holds = &leader, v.lease
	out = append(out, pipe.Report{Leader: &leader})
	if t.doubted {
		out = append(out, t.lease()...)
	}
	return out
}

// close says once that the run was closed.
func (t *teller) close() []pipe.Report {
	if t.closed {
		return nil
	}
	t.closed = true
	return []pipe.Report{{Closed: true}}
}

// wait says for what the bridge waits, if that is news; "" is for nothing.
func (t *teller) wait(text string) []pipe.Report {
	if t.waiting == text {
		return nil
	}
	t.waiting = text
	return []pipe.Report{{Waiting: &text}}
}
