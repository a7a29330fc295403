package quorum

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// The teller's decisions are not exported, hence a test from within.
func TestTeller(t *testing.T) {
	t.Parallel()
	mine := &session{id: 7, ttl: 5 * time.Second}
	next := &session{id: 8, ttl: 5 * time.Second}
	t0 := time.Unix(1000, 0)
	leads := func(id string, term int64, lease int64) *view {
		return &view{leader: &pipe.Leader{Addr: id + ":1", ID: id, Term: term}, lease: clientv3.LeaseID(lease)}
	}
	told := func(id string, term int64, mine bool) pipe.Report {
		return pipe.Report{Leader: &pipe.Leader{Addr: id + ":1", ID: id, Term: term, Mine: mine}}
	}
	gone := func(term int64) pipe.Report { return pipe.Report{Gone: term} }
	lease := func(good bool) pipe.Report { return pipe.Report{Lease: &good} }
	text := func(s string) pipe.Report { return pipe.Report{Waiting: &s} }

	type step struct {
		what string
		do   func(*teller) []pipe.Report
		want []pipe.Report
	}
	saw := func(s *session, v *view, want ...pipe.Report) step {
		return step{"saw", func(t *teller) []pipe.Report { return t.saw(s, v) }, want}
	}
	lost := func(s *session, want ...pipe.Report) step {
		return step{"lost", func(t *teller) []pipe.Report { return t.lost(s) }, want}
	}
	grant := func(s *session) step {
		return step{"granted", func(t *teller) []pipe.Report { t.granted(s, t0); return nil }, nil}
	}
	silence := func(want ...pipe.Report) step {
		return step{"silence", func(t *teller) []pipe.Report { return t.doubt(true) }, want}
	}
	kept := func(s *session, want ...pipe.Report) step {
		return step{"kept", func(t *teller) []pipe.Report { return t.kept(s, t0) }, want}
	}
	removed := func(want ...pipe.Report) step {
		return step{"removed", func(t *teller) []pipe.Report { return t.removed() }, want}
	}
	goesOn := func(v *view) *view { v.goesOn = true; return v }
	wait := func(s string, want ...pipe.Report) step {
		return step{"wait", func(t *teller) []pipe.Report { return t.wait(s) }, want}
	}

	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"one wins", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), saw(mine, leads("me", 3, 7))}},
		{"another wins", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), saw(mine, leads("you", 3, 9))}},
		{"nobody leads", []step{grant(mine), saw(mine, &view{})}},
		{"the leader goes", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), removed(),
			saw(mine, leads("me", 5, 7), gone(3), told("me", 5, true))}},
		{"the leader's key goes and comes back", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), removed(),
			saw(mine, goesOn(leads("you", 3, 10))), saw(mine, leads("you", 3, 10))}},
		{"a change that was missed", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)),
			saw(mine, leads("she", 8, 11), gone(3), told("she", 8, false))}},
		{"a term a second time, of a cluster that began again", []step{grant(mine), saw(mine, leads("you", 2, 9), told("you", 2, false)),
			saw(mine, leads("you", 2, 10), gone(2), told("you", 2, false))}},
		{"the lease of the leader is lost", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), lost(mine, lease(false)), lost(mine),
			grant(next), saw(next, leads("you", 9, 9), gone(3), told("you", 9, false))}},
		{"the lease of the leader is lost, and it leads by another", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), lost(mine, lease(false)),
			removed(), grant(next), kept(next), saw(next, goesOn(leads("me", 3, 8)), lease(true)), saw(next, leads("me", 3, 8))}},
		{"the leader is not answered", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), kept(mine),
			silence(lease(false)), silence(), kept(mine, lease(true)), kept(mine), saw(mine, leads("me", 3, 7))}},
		{"the leader is not answered, and another is elected", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), silence(lease(false)),
			lost(mine), grant(next), kept(mine), saw(next, leads("you", 5, 9), gone(3), told("you", 5, false)), kept(next)}},
		{"a follower is not answered", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), silence(), kept(mine)}},
		{"one wins that is not answered any more", []step{grant(mine), silence(), saw(mine, leads("me", 3, 7), told("me", 3, true), lease(false))}},
		{"the lease of a follower is lost", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), lost(mine),
			grant(next), saw(next, leads("you", 3, 9))}},
		{"news of a lease that is lost", []step{grant(mine), lost(mine), saw(mine, leads("me", 3, 7))}},
		{"the key of the lease of before", []step{grant(mine), saw(mine, leads("me", 3, 7), told("me", 3, true)), lost(mine, lease(false)),
			grant(next), saw(next, leads("me", 3, 7)), saw(next, leads("me", 9, 8), gone(3), told("me", 9, true))}},
		{"closed", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)),
			saw(mine, &view{closed: true}, pipe.Report{Closed: true}), saw(mine, &view{closed: true}), removed(gone(3)), saw(mine, leads("me", 5, 7))}},
		{"closed, after the key went", []step{grant(mine), saw(mine, leads("you", 3, 9), told("you", 3, false)), removed(),
			saw(mine, &view{closed: true}, pipe.Report{Closed: true}, gone(3))}},
		{"closed before", []step{grant(mine), saw(mine, &view{closed: true}, pipe.Report{Closed: true})}},
		{"waiting", []step{wait(""), wait("a", text("a")), wait("a"), wait("b", text("b")), wait("", text("")), wait("")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var teller teller
			for i, s := range tt.steps {
				if diff := cmp.Diff(s.want, s.do(&teller)); diff != "" {
					t.Errorf("step %d, %s (-want +got):\n%s", i, s.what, diff)
				}
			}
		})
	}
}

// A lease is given up before the servers can.
func TestUntil(t *testing.T) {
	t.Parallel()
	var tell teller
	s, t0 := &session{id: 7, ttl: 5 * time.Second}, time.Unix(1000, 0)
	tell.granted(s, t0)
	if want := t0.Add(4500 * time.Millisecond); !tell.until.Equal(want) {
		t.Errorf("after the grant: until %v, want %v", tell.until, want)
	}
	tell.kept(s, t0.Add(time.Second))
	if want := t0.Add(5500 * time.Millisecond); !tell.until.Equal(want) {
		t.Errorf("after a keep-alive: until %v, want %v", tell.until, want)
	}
	tell.lost(s)
	tell.kept(s, t0.Add(4*time.Second))
	if tell.session != nil {
		t.Error("a late answer brings a lease back that was given up")
	}
}
