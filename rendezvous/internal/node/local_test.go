package node_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

// local has the workers' store on every host.
func local(s *rendezvous.Spec) { s.Live = true }

// worker is a client of a node's workers' store.
func worker(t testing.TB, info *rendezvous.Info) *tcpstore.Client {
	t.Helper()
	addr := net.JoinHostPort(info.MasterAddr, strconv.Itoa(info.MasterPort))
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// raw is a connection to a node's workers' store.
func raw(t testing.TB, info *rendezvous.Info) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", net.JoinHostPort(info.MasterAddr, strconv.Itoa(info.MasterPort)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return nc
}

// exchange sends requests and returns the first n bytes of the answer.
func exchange(t testing.TB, nc net.Conn, requests string, n int) string {
	t.Helper()
	answer := make([]byte, n)
	if _, err := io.WriteString(nc, requests); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(nc, answer); err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// nexts lets all nodes join at once and returns what they know, in this order.
func nexts(t testing.TB, nodes ...rendezvous.Handler) []*rendezvous.Info {
	t.Helper()
	infos, errs := make([]*rendezvous.Info, len(nodes)), make([]error, len(nodes))
	var all sync.WaitGroup
	for i, h := range nodes {
		all.Go(func() { infos[i], errs[i] = h.Next(t.Context()) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return infos
}

// With a local store each node has its own address, which stays the same; workers that are
// connected continue in the next round, whose store is another, empty one.
func TestLocalStore(t *testing.T) {
	t.Parallel()
	endpoint, ranked := freeEndpoint(t), freeEndpoint(t)
	withToken := func(s *rendezvous.Spec) {
		local(s)
		s.Settings.Token = "the token of this job"
	}
	staticNode := func(rank int) rendezvous.Handler {
		s := spec("host" + strconv.Itoa(rank))
		local(&s)
		s.Endpoint, s.MaxNodes, s.NodeRank = ranked, 2, rank
		h, err := static.New(s)
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, h)
		return h
	}
	for name, nodes := range map[string][]rendezvous.Handler{
		"c10d":   {open(t, endpoint, 2, 2, "host0", withToken), open(t, endpoint, 2, 2, "host1", withToken)},
		"static": {staticNode(0), staticNode(1)},
	} {
		t.Run(name, func(t *testing.T) {
			first := nexts(t, nodes...)
			var workers [2]*tcpstore.Client
			for i, info := range first {
				if info.MasterAddr != "127.0.0.1" || !info.LocalStore || info.MasterPort == first[1-i].MasterPort {
					t.Errorf("node %d meets at %s:%d, local %v", i, info.MasterAddr, info.MasterPort, info.LocalStore)
				}
				workers[i] = worker(t, info)
				if sum, err := workers[i].Add(t.Context(), "n", 1); err != nil || sum != int64(i+1) {
					t.Errorf("worker %d is number %d, %v", i, sum, err)
				}
			}
			if first[0].Serves == first[1].Serves {
				t.Error("not one of the nodes serves, which holds the rendezvous")
			}
			// A WAIT for "/never" and a GETNUMKEYS, whose answer says that the WAIT is there.
			waiting := raw(t, first[1])
			if got := exchange(t, waiting, "\x00\xce\xf7\x85\x3c\x06\x01\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00/never\x07", 8); got != "\x01\x00\x00\x00\x00\x00\x00\x00" {
				t.Fatalf("the first round has %q keys", got)
			}

			second := nexts(t, nodes...)
			if got := exchange(t, waiting, "", 1); got != "\x01" {
				t.Errorf("a wait of the first round ended with %q", got)
			}
			if got := exchange(t, waiting, "\x07", 8); got != "\x00\x00\x00\x00\x00\x00\x00\x00" {
				t.Errorf("whoever waited finds %q keys in the second round", got)
			}
			for i, info := range second {
				if info.MasterAddr != first[i].MasterAddr || info.MasterPort != first[i].MasterPort {
					t.Errorf("node %d has moved its workers' store to %s:%d", i, info.MasterAddr, info.MasterPort)
				}
				if n, err := workers[i].NumKeys(t.Context()); err != nil || n != int64(i) {
					t.Errorf("the second round begins with %d keys, %v", n, err)
				}
				if sum, err := workers[i].Add(t.Context(), "n", 1); err != nil || sum != int64(i+1) {
					t.Errorf("worker %d is number %d of the second round, %v", i, sum, err)
				}
			}
		})
	}
}

// One host has a local store, too, and no other port.
func TestLocalStoreAlone(t *testing.T) {
	t.Parallel()
	s := spec("host0")
	local(&s)
	s.Endpoint, s.MinNodes, s.MaxNodes = "localhost:0", 1, 1
	h, err := c10d.New(s)
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, h)
	first := nexts(t, h)[0]
	c := worker(t, first)
	if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	second := nexts(t, h)[0]
	if there, err := c.Check(t.Context(), "k"); err != nil || there || second.MasterPort != first.MasterPort {
		t.Errorf("the second round at port %d, after %d, has the key: %v, %v", second.MasterPort, first.MasterPort, there, err)
	}
}

// All hosts have --live or none, which the one that comes later is told.
func TestLocalStoreOnAll(t *testing.T) {
	t.Parallel()
	endpoint := freeEndpoint(t)
	nodes := []rendezvous.Handler{open(t, endpoint, 2, 2, "host0", local), open(t, endpoint, 2, 2, "host1", nil)}
	ended := make(chan error, len(nodes))
	for _, h := range nodes {
		go func() {
			_, err := h.Next(t.Context())
			ended <- err
		}()
	}
	err := <-ended // of the one that came later
	if err == nil || !strings.Contains(err.Error(), "Spec.Live is given on host0 and not on host1") {
		t.Errorf("got %v", err)
	}
}

// An agent of torchrun's that comes later is refused, whatever it writes; the job continues.
func TestLocalStoreTorchComes(t *testing.T) {
	t.Parallel()
	endpoint := freeEndpoint(t)
	h := open(t, endpoint, 1, 2, "host0", local)
	nexts(t, h)
	m := &mixed{T: t, endpoint: endpoint, nodes: 2}
	f := m.torch(2)
	if st, a := f.join(); a != state.FailClosed {
		t.Errorf("it may %v in %+v", a, st)
	}
	const key = "torch.rendezvous.job1"
	text, err := f.agents.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	wants := state.NewState()
	wants.WaitList.Add(f.me)
	if _, err := f.agents.CompareAndSet(t.Context(), key, text, pickle.EncodeText(wants)); err != nil {
		t.Fatal(err)
	}
	if got, err := f.agents.Get(t.Context(), key); err != nil || !bytes.Equal(got, text) {
		t.Errorf("what it wrote has become %q, %v", got, err)
	}
	select {
	case c := <-h.Changes():
		t.Errorf("the job is told %v", c)
	default:
	}
	if again := nexts(t, h); again[0].WorldSize != 1 {
		t.Errorf("the next round is %+v", again[0])
	}
}

// An agent of torchrun's, as far as the store shows one, was there first: muster's ends.
func TestLocalStoreTorch(t *testing.T) {
	t.Parallel()
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"}) // it has no sessions, as PyTorch's
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	h := open(t, server.Addr().String(), 1, 2, "host0", local)
	_, err = h.Next(t.Context())
	if _, ok := errors.AsType[*rendezvous.ConnectionError](err); !ok || !strings.Contains(err.Error(), "Spec.Live") {
		t.Errorf("got %v", err)
	}
}
