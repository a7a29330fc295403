package room_test

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/room"
	"github.com/muster-run/muster/store"
)

// keys notes which runs are shown to foreign nodes.
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

// A server that lives long remembers for an hour which jobs have ended.
func TestEndedJobsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := &keys{list: map[string]bool{}}
		s := room.NewServer(room.ServerConfig{Mirrors: shown, Logger: slog.New(slog.DiscardHandler)})
		defer s.Close()
		visit := func(runID string, end bool) (closed bool) {
			ours, theirs := net.Pipe()
			var served sync.WaitGroup
			served.Go(func() { s.Serve(theirs) })
			defer served.Wait()
			c, err := room.Greet(t.Context(), ours, &room.Message{
				RunID: runID, Node: &rendezvous.Node{Addr: "a", PID: 1}, Host: "a", MinNodes: 1, MaxNodes: 1,
				KeepAlive: time.Second, KeepAliveLimit: 3 * time.Second, Role: "default", LocalWorldSize: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			kind := room.Join
			if end {
				kind = room.Close
			}
			if err := c.Send(&room.Message{Type: kind}); err != nil {
				t.Fatal(err)
			}
			m, err := c.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return m.Type == room.Closed
		}
		visit("job1", true)
		time.Sleep(59 * time.Minute)
		visit("job2", true)
		if !visit("job1", false) {
			t.Error("job1 may begin anew within the hour")
		}
		time.Sleep(61 * time.Minute)
		visit("job3", true)
		if d := cmp.Diff(map[string]bool{"torch.rendezvous.job3": true}, shown.list); d != "" {
			t.Errorf("what is remembered (-want +got):\n%s", d)
		}
	})
}
