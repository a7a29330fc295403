package server_test

import (
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
	visit = func(runID string, end bool, last *server.Place) *server.Message {
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
		})
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
	return s, visit
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
