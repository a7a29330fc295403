package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
)

// keys notes which runs are shown to torch nodes.
type keys struct {
	mu   sync.Mutex
	list map[string]bool
}

func (k *keys) Mirror(key string, _ store.Mirror) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list[key] = true
	return nil
}

func (k *keys) Unmirror(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.list, key)
}

// newVisits returns a server, and what has an agent come that joins or ends a run and is gone
// when it has its answer.
func newVisits(t *testing.T, shown *keys) (s *server.Server, visit func(runID string, end bool, last *server.Place) *server.Message) {
	s = server.New(shown, slog.New(slog.DiscardHandler))
	return s, visits(t, s)
}

func visits(t *testing.T, s *server.Server) (visit func(runID string, end bool, last *server.Place) *server.Message) {
	return func(runID string, end bool, last *server.Place) *server.Message {
		ours, theirs := net.Pipe()
		var served sync.WaitGroup
		served.Go(func() { s.Serve(theirs) })
		defer served.Wait()
		c, err := server.Greet(t.Context(), ours, &server.Message{
			Host: "a",
			Greeting: server.Greeting{
				RunID: runID, Node: &state.Node{Addr: "a", PID: 1}, MinNodes: 1, MaxNodes: 1,
				KeepAlive: time.Second, KeepAliveLimit: 3 * time.Second, Role: "default", LocalWorldSize: 1,
				Last: last,
			},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		kind := server.Join
		if end {
			kind = server.Close
		}
		if err := c.Send(&server.Message{Type: kind}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

// A job whose hosts are all gone, without an end, has left failures in the store of its
// rounds. Another with its ID has rounds of its own, also long after, and an agent
// that has only been cut off is not sent away.
func TestLostJobAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, visit := newVisits(t, &keys{list: map[string]bool{}})
		defer s.Close()
		if m := visit("job1", false, nil); m.Type != server.Round || m.Round != 0 || m.Job != 0 {
			t.Errorf("the first job: %+v", m)
		}
		last := visit("job1", false, nil)
		if last.Type != server.Round || last.Round < 1 || last.Job != last.Round {
			t.Errorf("the next job: %+v", last)
		}
		if m := visit("job1", false, &server.Place{Round: last.Round, WorldSize: 1}); m.Type != server.Round || m.Round <= last.Round || m.Job != last.Job {
			t.Errorf("an agent that was cut off: %+v", m)
		}
		if m := visit("job1", false, &server.Place{Round: 0, WorldSize: 1}); m.Type != server.Round {
			t.Errorf("one of the job before: %+v", m)
		}
		time.Sleep(61 * time.Minute)
		visit("job2", false, nil)
		if m := visit("job1", false, nil); m.Type != server.Round || m.Round <= last.Round || m.Job != m.Round {
			t.Errorf("a job long after: %+v", m)
		}
	})
}

// A server that lives long remembers for an hour which jobs have ended, for agents that
// took part. An ID of one that has ended is free for another at once.
func TestEndedJobsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := &keys{list: map[string]bool{}}
		s, visit := newVisits(t, shown)
		defer s.Close()
		straggler := &server.Place{Round: 0, Rank: 0, WorldSize: 1}
		visit("job1", false, nil)
		visit("job1", true, nil)
		time.Sleep(59 * time.Minute)
		visit("job2", true, nil)
		if m := visit("job1", false, straggler); m.Type != server.Closed {
			t.Errorf("one that took part in job1 hears %+v", m)
		}
		if m := visit("job1", false, nil); m.Type != server.Round || m.Round != m.Job || m.Job < 1 {
			t.Errorf("another job1 begins with %+v, want a round of its own", m)
		}
		visit("job1", true, straggler)
		if m := visit("job1", false, nil); m.Type != server.Round {
			t.Errorf("after a straggler has closed what is not its job: %+v", m)
		}
		visit("job1", true, nil)
		time.Sleep(61 * time.Minute)
		visit("job3", true, nil)
		if d := cmp.Diff(map[string]bool{"torch.rendezvous.job3": true}, shown.list); d != "" {
			t.Errorf("what is remembered (-want +got):\n%s", d)
		}
	})
}

// A session that comes when the server has been closed is not let in: nobody would end it.
func TestClosedServer(t *testing.T) {
	shown := &keys{list: map[string]bool{}}
	s, _ := newVisits(t, shown)
	s.Close()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go s.Serve(theirs)
	ours.SetDeadline(time.Now().Add(10 * time.Second))
	c, err := server.Greet(t.Context(), ours, hello("job1", 1, 1), nil)
	if err == nil {
		c.Close()
		t.Error("a closed server has a new session")
	} else if refused, _ := errors.AsType[*server.RefusedError](err); refused == nil || !refused.Over {
		t.Error(err)
	}
	if len(shown.list) > 0 {
		t.Errorf("it shows %v", shown.list)
	}
}

// Two agents of another release are refused. While the second's connection still ends,
// others come: they meet in one rendezvous, which torch nodes can see.
func TestRefusedSessionEndsLate(t *testing.T) {
	shown := &keys{list: map[string]bool{}}
	s, _ := newVisits(t, shown)
	defer s.Close()
	connect := func() (ours net.Conn, served chan struct{}) {
		ours, theirs := net.Pipe()
		served = make(chan struct{})
		go func() { defer close(served); s.Serve(theirs) }()
		return ours, served
	}
	var refused [2]net.Conn
	var served [2]chan struct{}
	for i := range refused {
		refused[i], served[i] = connect()
		m := hello("job1", i+1, 2)
		m.Type, m.Version = server.Hello, server.Version-1
		if _, err := refused[i].Write(m.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(refused[i], make([]byte, 4)); err != nil { // not the rest: the connection stays
			t.Fatal(err)
		}
	}
	join := func(pid int) *server.Client {
		ours, _ := connect()
		c, err := server.Greet(t.Context(), ours, hello("job1", pid, 2), nil)
		if err == nil {
			err = c.Send(&server.Message{Type: server.Join})
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	end := func(i int) {
		refused[i].Close()
		<-served[i]
	}
	end(0)
	one := join(3)
	defer one.Close()
	end(1)
	two := join(4)
	defer two.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, c := range []*server.Client{one, two} {
		if m, err := c.Recv(ctx); err != nil || m.Type != server.Round && m.Type != server.Hosts {
			t.Fatalf("%+v, %v; want a round", m, err)
		}
	}
	shown.mu.Lock()
	defer shown.mu.Unlock()
	if !shown.list["torch.rendezvous.job1"] {
		t.Error("torch nodes cannot see the rendezvous")
	}
}

// An agent that is refused makes no rendezvous: it has no rules, by which torch nodes that
// met before would all count as dead, and would replace what is remembered of a job.
func TestRefusedMakesNone(t *testing.T) {
	shown := &ever{keys{list: map[string]bool{}}}
	s := server.New(shown, slog.New(slog.DiscardHandler))
	defer s.Close()
	visit := visits(t, s)
	refused := func(runID string) {
		ours, theirs := net.Pipe()
		var served sync.WaitGroup
		served.Go(func() { s.Serve(theirs) })
		defer served.Wait()
		defer ours.Close()
		m := hello(runID, 1, 2)
		m.Type, m.Version = server.Hello, server.Version-1
		if _, err := ours.Write(m.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if m, err := server.Read(ours); err != nil || m.Type != server.Refused {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	refused("job1")
	if len(shown.list) != 0 {
		t.Error("torch nodes see a rendezvous of nobody")
	}
	visit("job2", false, nil)
	visit("job2", true, nil)
	refused("job2")
	if m := visit("job2", false, &server.Place{Round: 0, WorldSize: 1}); m.Type != server.Closed {
		t.Errorf("one that took part in job2 hears %+v", m)
	}
}

// ever are keys that are never removed.
type ever struct{ keys }

func (*ever) Unmirror(string) {}

// slow are keys whose removal takes a while to begin.
type slow struct {
	keys
	shown, removing chan struct{} // get each call
}

func (k *slow) Mirror(key string, m store.Mirror) []byte {
	defer func() { k.shown <- struct{}{} }()
	return k.keys.Mirror(key, m)
}

func (k *slow) Unmirror(key string) {
	k.removing <- struct{}{}
	time.Sleep(200 * time.Millisecond) // for a node that comes meanwhile; nothing tells where it waits
	k.keys.Unmirror(key)
}

// A node comes when the last one has just gone: torch nodes can see its rendezvous.
func TestShownAgain(t *testing.T) {
	shown := &slow{keys{list: map[string]bool{}}, make(chan struct{}, 9), make(chan struct{}, 9)}
	s := server.New(shown, slog.New(slog.DiscardHandler))
	defer s.Close()
	connect := func(pid int) (c *server.Client, served chan struct{}) {
		ours, theirs := net.Pipe()
		served = make(chan struct{})
		go func() { defer close(served); s.Serve(theirs) }()
		c, err := server.Greet(t.Context(), ours, hello("job1", pid, 2), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, served
	}
	first, served := connect(1)
	<-shown.shown
	first.Close()
	<-shown.removing
	second, _ := connect(2)
	defer second.Close()
	<-served
	<-shown.shown
	shown.mu.Lock()
	defer shown.mu.Unlock()
	if !shown.list["torch.rendezvous.job1"] {
		t.Error("torch nodes cannot see the rendezvous")
	}
}

// hello is the greeting of a node of a job of n.
func hello(runID string, pid, n int) *server.Message {
	return &server.Message{Host: "a", Greeting: server.Greeting{
		RunID: runID, Node: &state.Node{Addr: "a", PID: pid}, MinNodes: n, MaxNodes: n,
		KeepAlive: time.Second, KeepAliveLimit: 3 * time.Second, Role: "default", LocalWorldSize: 1,
	}}
}
