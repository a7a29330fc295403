package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// A mixed is a job of handlers and torch nodes, which all start over together. Its
// nodes have addresses of this host, 127.0.0.<last>; ranks go by that.
type mixed struct {
	*testing.T
	server   *tcpstore.Server // that all have a connection to
	endpoint string
	nodes    int
	change   func(*rendezvous.Spec)
}

// mix tests a job with both protocols: the server holds the rendezvous, or only stores
// its state, as PyTorch's does.
func mix(t *testing.T, nodes int, test func(*mixed)) {
	for name, prepare := range map[string]func(*tcpstore.Server){"holder": hold, "store": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newMixed(t, nodes, prepare))
		})
	}
}

func hold(s *tcpstore.Server) { c10d.Serve(s, slog.New(slog.DiscardHandler)) }

func newMixed(t *testing.T, nodes int, prepare func(*tcpstore.Server)) *mixed {
	server := serve(t, tcpstore.ServerConfig{Addr: "127.0.0.1:0", Prepare: prepare})
	return &mixed{T: t, server: server, endpoint: server.Addr().String(), nodes: nodes}
}

func serve(t testing.TB, cfg tcpstore.ServerConfig) *tcpstore.Server {
	t.Helper()
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server
}

func connect(t testing.TB, addr string) *tcpstore.Client {
	t.Helper()
	client, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func address(last int) string { return fmt.Sprintf("127.0.0.%d", last) }

// ours is a node of ours.
func (m *mixed) ours(last int) rendezvous.Handler {
	return open(m, m.endpoint, m.nodes, m.nodes, address(last), func(c *rendezvous.Spec) {
		no := false
		c.Settings.IsHost, c.LocalAddr, c.Settings.Join = &no, address(last), patience
		if m.change != nil {
			m.change(c)
		}
	})
}

// An arrival is what became of a Next.
type arrival struct {
	*rendezvous.Info
	err error
}

// next begins a Next.
func (m *mixed) next(h rendezvous.Handler) <-chan arrival {
	arrived := make(chan arrival, 1)
	go func() {
		info, err := h.Next(m.Context())
		arrived <- arrival{info, err}
	}()
	return arrived
}

// meets checks that a Next has led to a round with a rank and a place to meet.
func (m *mixed) meets(arrived <-chan arrival, round, rank int, addr string) {
	m.Helper()
	a := <-arrived
	if a.err != nil {
		m.Fatal(a.err)
	}
	if got := net.JoinHostPort(a.MasterAddr, strconv.Itoa(a.MasterPort)); a.Round != round || a.Rank != rank || a.WorldSize != m.nodes || got != addr {
		m.Fatalf("round %d, rank %d of %d, workers meet at %s; want round %d, rank %d of %d, %s", a.Round, a.Rank, a.WorldSize, got, round, rank, m.nodes, addr)
	}
}

// A torchNode is a node that knows the rendezvous only as a value in the store, as
// PyTorch's agents do, and a place for workers to meet.
type torchNode struct {
	m       *mixed
	me      state.Node
	agents  store.Store
	server  *tcpstore.Server
	workers store.Store
}

func (m *mixed) torch(last int) *torchNode {
	f := &torchNode{m: m, me: state.Node{Addr: address(last), PID: 1}, agents: connect(m, m.endpoint)}
	f.server = serve(m, tcpstore.ServerConfig{Addr: address(last) + ":0"})
	f.workers = connect(m, f.addr())
	return f
}

func (f *torchNode) addr() string { return f.server.Addr().String() }

// perform does what decide says until it is to wait or is done.
func (f *torchNode) perform(decide func(*state.State, state.Rules, time.Time) state.Action) (*state.State, state.Action) {
	f.m.Helper()
	const key = "torch.rendezvous.job1"
	rules := state.Rules{MinNodes: f.m.nodes, MaxNodes: f.m.nodes, LastCall: time.Second, KeepAliveInterval: 5 * time.Second}
	text, err := f.agents.CompareAndSet(f.m.Context(), key, nil, []byte(pickle.Sentinel))
	for {
		if err != nil {
			f.m.Fatal(err)
		}
		st, err1 := pickle.DecodeText(text)
		if err1 != nil {
			f.m.Fatal(err1)
		}
		if st == nil {
			st = state.NewState()
		}
		a := decide(st, rules, time.Now())
		switch a {
		case state.Sync, state.Finish, state.FailClosed, state.FailRedundant:
			return st, a
		}
		st.Do(a, f.me, rules, time.Now())
		text, err = f.agents.CompareAndSet(f.m.Context(), key, text, pickle.EncodeText(st))
	}
}

// join joins and does not wait for others.
func (f *torchNode) join() (*state.State, state.Action) {
	f.m.Helper()
	return f.perform(func(st *state.State, r state.Rules, now time.Time) state.Action {
		return st.Join(f.me, r, now, now.Add(time.Minute))
	})
}

// meets waits until its round is complete, looking at it now and then.
func (f *torchNode) meets(round, rank int) {
	f.m.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		st, a := f.join()
		if a == state.Finish {
			if st.Round != round || st.Participants[f.me] != rank {
				f.m.Fatalf("torch node: round %d, rank %d; want %d and %d", st.Round, st.Participants[f.me], round, rank)
			}
			return
		}
		select {
		case <-ticker.C:
		case <-f.m.Context().Done():
			f.m.Fatal("the torch node does not meet anybody")
		}
	}
}

// leave leaves the round, for good or to join the next.
func (f *torchNode) leave() {
	f.m.Helper()
	f.perform(func(st *state.State, _ state.Rules, _ time.Time) state.Action { return st.Exit(f.me) })
}

// publish says where the workers of a round meet.
func (f *torchNode) publish(round int) {
	f.m.Helper()
	f.say(round, f.me.Addr, strconv.Itoa(f.server.Port()))
}

func (f *torchNode) say(round int, addr, port string) {
	f.m.Helper()
	s := store.Prefix(fmt.Sprintf("torch.rendezvous.job1.%d", round), f.agents)
	if err := s.MultiSet(f.m.Context(), []string{"MASTER_ADDR", "MASTER_PORT"}, [][]byte{[]byte(addr), []byte(port)}); err != nil {
		f.m.Fatal(err)
	}
}

// leaveKeys leaves something in the workers' store.
func (f *torchNode) leaveKeys() {
	f.m.Helper()
	if err := f.workers.Set(f.m.Context(), "left over", nil); err != nil {
		f.m.Fatal(err)
	}
}

// clean checks whether it is there no more.
func (f *torchNode) clean(want bool) {
	f.m.Helper()
	if there, err := f.workers.Check(f.m.Context(), "left over"); err != nil || there == want {
		f.m.Errorf("what workers left in the store is there: %v, %v; want %v", there, err, !want)
	}
}

// A torch node of rank 0 that goes before it has said where the workers meet is not waited
// for.
func TestTorchRank0Gone(t *testing.T) {
	mix(t, 2, func(m *mixed) {
		said := make(lines, 64)
		m.change = func(c *rendezvous.Spec) { c.Logger = slog.New(slog.NewTextHandler(said, nil)) }
		f, a := m.torch(1), m.ours(2)
		f.join()
		arrived := m.next(a)
		f.meets(0, 0)
		f.leave()
		said.wait(t, "joining again")
		f.join()
		f.meets(1, 0)
		f.publish(1)
		m.meets(arrived, 1, 1, f.addr())
	})
}

// What else a holder says while a node waits for rank 0 it hears afterwards.
func TestTorchRank0Late(t *testing.T) {
	m := newMixed(t, 3, hold)
	f, a, b := m.torch(1), m.ours(2), m.ours(3)
	f.join()
	arrived := m.next(a)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.Next(ctx)
		gone <- err
	}()
	f.meets(0, 0)
	cancel()
	if err := <-gone; err == nil {
		t.Error("a Next that was cut off has a round")
	}
	if err := end(b.Leave); err != nil {
		t.Error(err)
	}
	f.publish(0)
	m.meets(arrived, 0, 1, f.addr())
	if c := change(t, a, rendezvous.NodeLeft); c.Rank != 2 {
		t.Errorf("change %+v", c)
	}
}

// Nor is it waited for when the server is lost, or the job over.
func TestTorchRank0Never(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(f *torchNode)
		want string
	}{
		{"server lost", func(f *torchNode) { f.m.server.Close() }, "lost"},
		{"job over", func(f *torchNode) {
			f.perform(func(st *state.State, _ state.Rules, _ time.Time) state.Action { return st.End() })
		}, rendezvous.ErrClosed.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mix(t, 2, func(m *mixed) {
				f, a := m.torch(1), m.ours(2)
				f.join()
				arrived := m.next(a)
				f.meets(0, 0)
				tt.do(f)
				if got := <-arrived; got.err == nil || !strings.Contains(got.err.Error(), tt.want) {
					m.Errorf("Next: %+v, %v; want an error with %q", got.Info, got.err, tt.want)
				}
			})
		})
	}
}

// A torch node of rank 0 publishes once in its life. Later rounds meet at the same place,
// which is emptied; unless agents start their workers when they like.
func TestTorchMasterStays(t *testing.T) {
	for _, identical := range []bool{false, true} {
		t.Run(fmt.Sprint("identical=", identical), func(t *testing.T) {
			mix(t, 2, func(m *mixed) {
				m.change = func(c *rendezvous.Spec) { c.IdenticalWorkers = identical }
				f, a := m.torch(1), m.ours(2)
				f.join()
				arrived := m.next(a)
				f.meets(0, 0)
				f.publish(0)
				m.meets(arrived, 0, 1, f.addr())

				f.leaveKeys()
				f.leave()
				f.join()
				arrived = m.next(a)
				f.meets(1, 0)
				m.meets(arrived, 1, 1, f.addr())
				f.clean(!identical)

				// One that has not met it finds the earlier round's.
				if err := end(a.Leave); err != nil {
					m.Error(err)
				}
				f.leaveKeys()
				f.leave()
				f.join()
				arrived = m.next(m.ours(3))
				f.meets(2, 0)
				m.meets(arrived, 2, 1, f.addr())
				f.clean(!identical)
			})
		})
	}
}

// A node of ours that comes to have rank 0 uses the place that a torch node has
// published, as long as that takes part and the place is there.
func TestInherit(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*rendezvous.Spec)
		between  func(f *torchNode)
		inherits bool
	}{
		{name: "it is there", inherits: true, between: func(f *torchNode) { f.leaveKeys() }},
		{name: "it has ended", between: func(f *torchNode) { f.server.Close() }},
		{name: "its node is gone", between: func(f *torchNode) {
			f.leave()
			f.me.Addr = address(5) // another one comes instead
		}},
		{name: "workers want a store of their own", change: func(c *rendezvous.Spec) { c.PrivateStore = true }, between: func(*torchNode) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mix(t, 3, func(m *mixed) {
				m.change = tt.change
				f, a, b, c := m.torch(2), m.ours(3), m.ours(1), m.ours(9)
				f.join()
				atA, atC := m.next(a), m.next(c)
				f.meets(0, 0)
				f.publish(0)
				m.meets(atA, 0, 1, f.addr())
				m.meets(atC, 0, 2, f.addr())

				if err := end(c.Leave); err != nil {
					m.Error(err)
				}
				tt.between(f)
				f.leave()
				atA = m.next(a)
				atB := m.next(b)
				rankF, rankA := 1, 2
				if f.me.Addr > address(3) {
					rankF, rankA = 2, 1
				}
				f.meets(1, rankF)
				info := <-atB
				if info.err != nil {
					m.Fatal(info.err)
				}
				place := net.JoinHostPort(info.MasterAddr, strconv.Itoa(info.MasterPort))
				if inherits := place == f.addr(); info.Round != 1 || info.Rank != 0 || inherits != tt.inherits || !inherits && info.MasterAddr != address(1) {
					m.Fatalf("%+v; the torch node's place is %s, inherited: want %v", info.Info, f.addr(), tt.inherits)
				}
				m.meets(atA, 1, rankA, place)
				if tt.inherits {
					f.clean(true)
				}
			})
		})
	}
}

func TestTorchMasterSenseless(t *testing.T) {
	for _, tt := range []struct{ addr, port string }{
		{"127.0.0.1", "x"}, {"127.0.0.1", "0"}, {"127.0.0.1", "65536"}, {"", "1"}, {strings.Repeat("a", 256), "1"},
	} {
		t.Run(fmt.Sprintf("%.10s_%s", tt.addr, tt.port), func(t *testing.T) {
			mix(t, 2, func(m *mixed) {
				f, a := m.torch(1), m.ours(2)
				f.join()
				arrived := m.next(a)
				f.meets(0, 0)
				f.say(0, tt.addr, tt.port)
				if got := <-arrived; got.err == nil || !strings.Contains(got.err.Error(), "are not an address") {
					m.Errorf("Next: %+v, %v", got.Info, got.err)
				}
			})
		})
	}
}
