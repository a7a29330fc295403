package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// staticNode makes one of three nodes with fixed ranks.
func staticNode(t *testing.T, endpoint string, rank int, tell func(rendezvous.Waiting)) rendezvous.Handler {
	t.Helper()
	h, err := static.New(rendezvous.Spec{
		RunID: "none", Role: "trainer", LocalWorldSize: 2, Host: fmt.Sprint("host", rank), OnWaiting: tell,
		Endpoint: endpoint, NodeRank: rank, MaxNodes: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A node with a fixed rank waits for the others for many minutes. It has no session
// while it does, which would be ended for saying nothing, and begins one when all
// have come.
func TestStaticWaitsWithoutSession(t *testing.T) {
	endpoint := freeEndpoint(t)
	heard := make(chan string, 8)
	first, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: endpoint, Prepare: func(s *tcpstore.Server) {
		s.HandleSession("rendezvous", func(conn net.Conn) {
			said := make([]byte, 1)
			n, _ := conn.Read(said)
			heard <- string(said[:n])
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	h := staticNode(t, endpoint, 1, nil)
	met := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context()) // it tries again where nobody answers
	defer cancel()
	go func() {
		_, err := h.Next(ctx)
		met <- err
	}()
	if err := first.WaitForWorkers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "" {
		t.Errorf("the node has said %q before the others have come, want the end of its connection", got)
	}
	if err := store.Prefix("muster.none/0", first.Store()).Set(t.Context(), "mode", []byte("held")); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got == "" {
		t.Error("the node has begun no session after the others have come")
	}
	cancel()
	if err := <-met; err == nil {
		t.Error("the node has met others without an answer")
	}
	end(h.Leave)
}

// Agents that were started again while others are missing do not pass for more than
// they are, nor for PyTorch's.
func TestStaticStartedAgain(t *testing.T) {
	endpoint := freeEndpoint(t)
	lines := make(chan string, 100)
	first := staticNode(t, endpoint, 0, func(w rendezvous.Waiting) { lines <- w.String() })
	atEnd(t, first)
	met := make(chan *rendezvous.Info, 3)
	join := func(h rendezvous.Handler) {
		go func() {
			info, err := h.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			met <- info
		}()
	}
	join(first)
	ghost, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: endpoint, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer ghost.Close()
	// One that died between the two counts.
	job := store.Prefix("muster.none/0", ghost)
	if _, err := job.Add(t.Context(), "agents", 1); err != nil {
		t.Fatal(err)
	}
	if err := job.Set(t.Context(), "host/1", []byte("host1")); err != nil {
		t.Fatal(err)
	}
	for line := range lines {
		if strings.Contains(line, "2 of 3 nodes have joined (host0, host1), missing node rank 2; giving up in 14m") {
			break
		}
	}
	for rank := 1; rank < 3; rank++ {
		h := staticNode(t, endpoint, rank, nil)
		atEnd(t, h)
		join(h)
	}
	var infos []*rendezvous.Info
	for range 3 {
		infos = append(infos, <-met)
	}
	for _, info := range infos {
		if info == nil || info.Ranks == nil {
			t.Fatalf("%+v: the rendezvous is not held by rank 0, as if PyTorch's agents took part", info)
		}
	}
	check(t, infos)
}

// A client that is not an agent does not pass for one: the nodes that wait hear which rank is missing and what may
// be wrong, all meet once that comes, and nobody waits for longer than the timeout.
func TestStaticStranger(t *testing.T) {
	const role = `{"role": "trainer", "rank": 1, "local_world_size": 1}`
	const missing = "2 of 3 nodes have joined (host0, host2), missing node rank 1"
	want := map[byte]string{'0': missing + "; clients not known as agents of this job: 1; does another job use this port?", '2': missing}
	for _, tt := range []struct {
		name, role string
		comes      bool
		timeout    time.Duration
		ranks      bool // the rendezvous assigns them
	}{
		{name: "nobody comes", timeout: 8 * time.Second},
		{name: "the agent comes", comes: true, timeout: patience, ranks: true},
		{name: "it is an agent of PyTorch's", role: role, timeout: patience},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			endpoint := freeEndpoint(t)
			type result struct {
				*rendezvous.Info
				err  error
				rank byte
			}
			said, met := make(chan string, 200), make(chan result, 3)
			join := func(rank int) {
				s := rendezvous.Spec{RunID: "none", LocalWorldSize: 2, Host: fmt.Sprint("host", rank), Endpoint: endpoint,
					NodeRank: rank, MaxNodes: 3, OnWaiting: func(w rendezvous.Waiting) { said <- fmt.Sprint(rank, " ", w) }}
				s.Settings.Timeout, s.Settings.Join = tt.timeout, patience
				h, err := static.New(s)
				if err != nil {
					t.Fatal(err)
				}
				atEnd(t, h)
				go func() {
					info, err := h.Next(t.Context())
					met <- result{info, err, byte('0' + rank)}
				}()
			}
			join(0)
			join(2)
			stranger, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: endpoint, Timeout: patience, WorldSize: 3})
			if err != nil {
				t.Fatal(err)
			}
			defer stranger.Close()
			for heard := [3]bool{}; !heard[0] || !heard[2]; {
				line := <-said
				text, left, found := strings.Cut(line[2:], "; giving up in ")
				heard[line[0]-'0'] = found && text == want[line[0]] && left != "" || heard[line[0]-'0']
			}
			n := 2
			if tt.comes {
				n = 3
				join(1)
			} else if tt.role != "" {
				if err := stranger.Set(t.Context(), "none/torchelastic/role_info/1", []byte(tt.role)); err != nil {
					t.Fatal(err)
				}
			}
			for range n {
				switch r := <-met; {
				case tt.comes || tt.role != "":
					if r.err != nil || (r.Ranks != nil) != tt.ranks {
						t.Errorf("%+v, %v; want a round, in which the rendezvous assigns ranks: %v", r.Info, r.err, tt.ranks)
					}
				case r.err == nil || r.err.Error() != "rendezvous: join timed out after 8s: "+want[r.rank]:
					t.Errorf("%v; want a timeout, %s", r.err, want[r.rank])
				}
			}
		})
	}
}

// Where rank 0 is an agent of PyTorch's a node hears which ranks are missing, meets the others once those have
// said theirs, and does not wait for longer than the timeout.
func TestStaticBehindTorch(t *testing.T) {
	for _, comes := range []bool{true, false} {
		t.Run(fmt.Sprint("all come: ", comes), func(t *testing.T) {
			t.Parallel()
			torch, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
			if err != nil {
				t.Fatal(err)
			}
			defer torch.Close()
			const missing = "2 of 3 nodes have joined (host2 and 1 more), missing node rank 1"
			said := make(chan string, 200)
			s := rendezvous.Spec{RunID: "none", LocalWorldSize: 2, Host: "host2", Endpoint: torch.Addr().String(), NodeRank: 2, MaxNodes: 3,
				OnWaiting: func(w rendezvous.Waiting) { said <- w.String() }}
			s.Settings.Timeout, s.Settings.Join = 8*time.Second, patience
			if comes {
				s.Settings.Timeout = patience
			}
			h, err := static.New(s)
			if err != nil {
				t.Fatal(err)
			}
			atEnd(t, h)
			go func() {
				for line := range said {
					if comes && strings.HasPrefix(line, missing+"; giving up in ") {
						_ = torch.Store().Set(t.Context(), "none/torchelastic/role_info/1", []byte(`{"role": "trainer", "rank": 1, "local_world_size": 1}`))
					}
				}
			}()
			info, err := h.Next(t.Context())
			if comes && (err != nil || info.Rank != 2 || info.WorldSize != 3) {
				t.Errorf("%+v, %v", info, err)
			}
			if want := "rendezvous: join timed out after 8s: " + missing; !comes && (err == nil || err.Error() != want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

// Where two hosts have one node rank all of them hear which one is missing, and nobody waits for longer
// than the timeout.
func TestStaticTwoOfOneRank(t *testing.T) {
	endpoint := freeEndpoint(t)
	var log lockedBuilder
	ended := make(chan error, 3)
	for i, rank := range []int{0, 1, 1} {
		s := rendezvous.Spec{RunID: "none", LocalWorldSize: 2, Host: fmt.Sprint("host", i), Endpoint: endpoint,
			NodeRank: rank, MaxNodes: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		s.Settings.Timeout, s.Settings.Join = 8*time.Second, patience
		h, err := static.New(s)
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, h)
		go func() {
			_, err := h.Next(t.Context())
			ended <- err
		}()
	}
	const names = `\(host0, host1 or host2\)|\(host0, host2 or host1\)`
	want := regexp.MustCompile(`^rendezvous: join timed out after 8s: 2 of 3 nodes have joined (` + names + `), missing node rank 2$`)
	for range 3 {
		if err := <-ended; err == nil || !want.MatchString(err.Error()) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if n := strings.Count(log.String(), "another host uses this node rank; unless it has ended"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
}

// A host that is lost is missed under its node rank, which another in its place needs, and for no longer
// than the timeout.
func TestStaticMissesLostHost(t *testing.T) {
	endpoint := freeEndpoint(t)
	var nodes []rendezvous.Handler
	for rank := range 2 {
		s := rendezvous.Spec{RunID: "none", LocalWorldSize: 2, Host: fmt.Sprint("host", rank), Endpoint: endpoint,
			NodeRank: rank, MaxNodes: 2}
		s.Settings.Timeout, s.Settings.Join = 8*time.Second, patience
		h, err := static.New(s)
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, h)
		nodes = append(nodes, h)
	}
	meet(t, nodes...)
	if err := end(nodes[1].Leave); err != nil {
		t.Fatal(err)
	}
	change(t, nodes[0], rendezvous.NodeLeft)
	const want = "rendezvous: join timed out after 8s: 1 of 2 nodes have joined (host0), missing node rank 1 (host1)"
	if _, err := nodes[0].Next(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A host with node rank 0 that is not at the endpoint is told so.
func TestStaticRankZeroElsewhere(t *testing.T) {
	var log lockedBuilder
	s := rendezvous.Spec{RunID: "none", LocalWorldSize: 1, Endpoint: "192.0.2.1:0", MaxNodes: 2,
		Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s.Settings.Timeout, s.Settings.Bind = time.Millisecond, "127.0.0.1"
	h, err := static.New(s)
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, h)
	if _, err := h.Next(t.Context()); err == nil {
		t.Error("it has met others")
	}
	if !strings.Contains(log.String(), "this host has node rank 0, but the endpoint") {
		t.Errorf("no warning:\n%s", log.String())
	}
}

// A host that is started anew, and whose agent of before is not missed yet, waits until that is.
func TestStaticHostStartedAnew(t *testing.T) {
	endpoint := freeEndpoint(t)
	met := make(chan *rendezvous.Info, 2)
	notes := make(chan string, 1000)
	join := func(rank int) {
		h, err := static.New(rendezvous.Spec{RunID: "none", LocalWorldSize: 2, Host: "host", Endpoint: endpoint,
			NodeRank: rank, MaxNodes: 2, OnWaiting: func(w rendezvous.Waiting) { notes <- w.String() }})
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, h)
		go func() {
			info, err := h.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			met <- info
		}()
	}
	join(0)
	before, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: endpoint, Timeout: patience}, "rendezvous")
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	hello := server.Message{Type: server.Hello, Host: "host1", Greeting: server.Greeting{Version: server.Version,
		RunID: "none", Node: &state.Node{Addr: "00000001"}, Instance: 1, MinNodes: 2, MaxNodes: 2, LocalWorldSize: 2,
		KeepAlive: time.Second, KeepAliveLimit: 2 * time.Second}}
	if _, err := before.Write(hello.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if m, err := server.Read(before); err != nil || m.Type != server.Welcome {
		t.Fatal(m, err)
	}
	join(1)
	check(t, []*rendezvous.Info{<-met, <-met})
	said := false
	for len(notes) > 0 {
		said = strings.HasPrefix(<-notes, "node rank 1 has joined already, from host host1; give each host its own Spec.NodeRank; it may have ended, and is asked; giving up in ") || said
	}
	if !said {
		t.Error("nobody was told why the node waits")
	}
}

// Rank 0 is started again while a node that has come waits for the others: all meet at the new one.
func TestStaticRankZeroStartedAgain(t *testing.T) {
	endpoint := freeEndpoint(t)
	met := make(chan *rendezvous.Info, 3)
	join := func(h rendezvous.Handler) {
		atEnd(t, h)
		go func() {
			info, err := h.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			met <- info
		}()
	}
	first, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: endpoint, Prepare: func(s *tcpstore.Server) {
		s.HandleSession("rendezvous", func(conn net.Conn) { conn.Close() })
	}})
	if err != nil {
		t.Fatal(err)
	}
	join(staticNode(t, endpoint, 1, nil))
	if err := first.WaitForWorkers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	join(staticNode(t, endpoint, 0, nil))
	join(staticNode(t, endpoint, 2, nil))
	infos := []*rendezvous.Info{<-met, <-met, <-met}
	check(t, infos)
}

// A lockedBuilder may be written to and read at once.
type lockedBuilder struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
