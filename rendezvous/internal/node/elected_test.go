package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/election"
	"github.com/muster-run/muster/rendezvous/internal/node"
)

// A ballot elects the agent that entered first among those that are left.
type ballot struct {
	mu      sync.Mutex // guards the rest
	entered []string
	term    int64
	leader  string
	lost    chan struct{}
	news    chan struct{} // closed when something has changed
	closed  bool
}

func newBallot() *ballot { return &ballot{news: make(chan struct{})} }

func (b *ballot) elect(_ context.Context, addr string) (node.Election, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entered = append(b.entered, addr)
	b.choose()
	return &voter{b, addr}, nil
}

// choose elects if there is no leader.
func (b *ballot) choose() {
	if b.leader == "" && len(b.entered) > 0 {
		b.term++
		b.leader, b.lost = b.entered[0], make(chan struct{})
	}
	close(b.news)
	b.news = make(chan struct{})
}

// remove takes an agent out of the election.
func (b *ballot) remove(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entered = slices.DeleteFunc(b.entered, func(a string) bool { return a == addr })
	if b.leader == addr {
		b.leader = ""
		close(b.lost)
	}
	b.choose()
}

type voter struct {
	b    *ballot
	addr string
}

func (v *voter) Leader(ctx context.Context) (pipe.Leader, error) {
	for {
		v.b.mu.Lock()
		leader, term, news, closed := v.b.leader, v.b.term, v.b.news, v.b.closed
		v.b.mu.Unlock()
		if closed {
			return pipe.Leader{}, election.ErrClosed
		}
		if leader != "" {
			return pipe.Leader{Addr: leader, Mine: leader == v.addr, Term: term}, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return pipe.Leader{}, context.Cause(ctx)
		}
	}
}

func (v *voter) Lost(term int64) <-chan struct{} {
	v.b.mu.Lock()
	defer v.b.mu.Unlock()
	if term == v.b.term {
		return v.b.lost
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

func (v *voter) Lease() <-chan bool { return nil }

func (v *voter) Close(_ context.Context, done bool) error {
	if done {
		v.b.mu.Lock()
		v.b.closed = true
		v.b.mu.Unlock()
	}
	v.b.remove(v.addr)
	return nil
}

// elected makes a node of a job of several under an election.
func elected(t testing.TB, b *ballot, min, max int, name string, change func(*rendezvous.Settings)) rendezvous.Handler {
	t.Helper()
	cfg := spec(name)
	cfg.MinNodes, cfg.MaxNodes = min, max
	if change != nil {
		change(&cfg.Settings)
	}
	h, err := node.ElectedBy(cfg, b.elect, "")
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, h)
	return h
}

func longLastCall(s *rendezvous.Settings) { s.LastCall = time.Hour }

func TestElected(t *testing.T) {
	b := newBallot()
	var nodes []rendezvous.Handler
	for i := range 4 {
		nodes = append(nodes, elected(t, b, 2, 4, fmt.Sprint("host", i), longLastCall))
	}
	infos := meet(t, nodes...)
	b.mu.Lock()
	leader := b.leader
	b.mu.Unlock()

	// Whoever holds the rendezvous leaves, which is not an end for the others.
	first := -1
	for i, h := range nodes {
		if node.Address(h) == leader {
			first = i
		}
	}
	if first < 0 {
		t.Fatalf("no node has the leader's address %s", leader)
	}
	if err := end(nodes[first].Leave); err != nil {
		t.Error(err)
	}
	rest := slices.Delete(slices.Clone(nodes), first, first+1)
	ranks := slices.Delete(slices.Clone(infos), first, first+1)
	for _, h := range rest {
		c := <-h.Changes()
		left := c.Kind == rendezvous.NodeLeft && c.Node == fmt.Sprint("host", first)
		if gone := c.Kind == rendezvous.NodeLost && c.Node == leader; !left && !gone {
			t.Errorf("got change %+v; want host%d, which holds the rendezvous at %s, to have left or to be lost", c, first, leader)
		}
	}
	again := meet(t, rest...)
	for i, info := range again {
		if info.Round != infos[0].Round+1 {
			t.Errorf("round %d after %d", info.Round, infos[0].Round)
		}
		if was := ranks[i].Rank; was < len(rest) && info.Rank != was {
			t.Errorf("rank %d was %d", info.Rank, was)
		}
	}

	// The end is one for all.
	var all sync.WaitGroup
	for _, h := range rest {
		all.Go(func() {
			if err := end(h.Shutdown); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	late := elected(t, b, 2, 4, "late", longLastCall)
	if _, err := late.Next(t.Context()); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("Next after the end: %v", err)
	}
}

// The restarts that a job has used are not lost with who holds the rendezvous: all nodes of the next round know
// them, also one that is new.
func TestRestartsOutliveTheHolder(t *testing.T) {
	b := newBallot()
	nodes := []rendezvous.Handler{elected(t, b, 3, 3, "host0", nil), elected(t, b, 3, 3, "host1", nil), elected(t, b, 3, 3, "host2", nil)}
	meet(t, nodes...)
	b.mu.Lock()
	leader := b.leader
	b.mu.Unlock()
	holder := slices.IndexFunc(nodes, func(h rendezvous.Handler) bool { return node.Address(h) == leader })
	if err := end(nodes[holder].Leave); err != nil {
		t.Error(err)
	}
	rest := slices.Delete(nodes, holder, holder+1)
	rest[0].CountRestarts(2)
	rest[1].CountRestarts(1) // it has not heard of the last one
	for _, info := range meet(t, append(rest, elected(t, b, 3, 3, "new", nil))...) {
		if info.Restarts != 2 {
			t.Errorf("rank %d: %d restarts, want 2", info.Rank, info.Restarts)
		}
	}
}

// A node that cannot make the workers' store says so. It has not lost the rendezvous, and does
// not join again and again.
func TestElectedWithoutWorkersStore(t *testing.T) {
	h := elected(t, newBallot(), 1, 2, "a", func(s *rendezvous.Settings) { s.LastCall = 10 * time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := h.Next(ctx); err != nil {
		t.Fatal(err)
	}
	if err := node.CloseWorkersStore(h); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Next(ctx); err == nil || !strings.Contains(err.Error(), "start the workers' store") {
		t.Errorf("got %v", err)
	}
}

// A lateVoter has led for a term before the ballot's, of which connect hears when campaign has let go of it.
type lateVoter struct {
	node.Election
	addr            string
	campaigns, asks int
	letGo           chan struct{}
}

func (v *lateVoter) Leader(ctx context.Context) (pipe.Leader, error) {
	term := pipe.Leader{Addr: v.addr, Mine: true, Term: 1}
	if _, connects := ctx.Deadline(); connects {
		if v.asks++; v.asks == 1 {
			<-v.letGo
			return term, nil
		}
	} else {
		switch v.campaigns++; v.campaigns {
		case 1:
			return term, nil
		case 2:
			close(v.letGo)
		}
	}
	return v.Election.Leader(ctx)
}

// An agent does not begin to hold the rendezvous again for a term that it has let go of.
func TestElectedForATermThatIsOver(t *testing.T) {
	b := newBallot()
	b.term = 1
	leads := elected(t, b, 2, 2, "host1", nil)
	cfg := spec("host0")
	cfg.MinNodes, cfg.MaxNodes = 2, 2
	late, err := node.ElectedBy(cfg, func(ctx context.Context, addr string) (node.Election, error) {
		for {
			b.mu.Lock()
			leader, news := b.leader, b.news
			b.mu.Unlock()
			if leader != "" {
				break
			}
			<-news
		}
		election, err := b.elect(ctx, addr)
		return &lateVoter{Election: election, addr: addr, letGo: make(chan struct{})}, err
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, late)
	meet(t, late, leads)
	if node.Holds(late) || !node.Holds(leads) {
		t.Errorf("the one whose term is over holds the rendezvous: %t, the other: %t", node.Holds(late), node.Holds(leads))
	}
}
