package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

// patience bounds every wait for what should happen.
const patience = time.Minute

// freeEndpoint returns an endpoint on this host that nobody listens at, with a port that
// the kernel gives to nobody who asks for any.
func freeEndpoint(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}

// open makes a node of a job of several.
func open(t testing.TB, endpoint string, min, max int, name string, change func(*rendezvous.Spec)) rendezvous.Handler {
	t.Helper()
	cfg := spec(name)
	cfg.Endpoint, cfg.MinNodes, cfg.MaxNodes = endpoint, min, max
	if change != nil {
		change(&cfg)
	}
	h, err := c10d.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, h)
	return h
}

func spec(name string) rendezvous.Spec {
	s := rendezvous.Spec{RunID: "job1", Role: "trainer", LocalWorldSize: 2, Host: name}
	s.Settings.LastCall = 2 * time.Second // a node that was told to come again may be slow
	return s
}

// ending holds the nodes of each test that are being shut down.
var ending sync.Map

// atEnd shuts a node down when the test ends, all of them at the same time.
func atEnd(t testing.TB, h rendezvous.Handler) {
	all, old := ending.LoadOrStore(t, &sync.WaitGroup{})
	if !old {
		t.Cleanup(func() { all.(*sync.WaitGroup).Wait() }) // the last one to run
	}
	t.Cleanup(func() {
		all.(*sync.WaitGroup).Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // some wait for nodes that are gone
			defer cancel()
			_ = h.Shutdown(ctx)
		})
	})
}

// A job that meets at the agent of another job is told so at the start, since it ends with that.
func TestAgentOfAnotherJobHolds(t *testing.T) {
	const warning = "the agent of another job holds the rendezvous at this endpoint, and both jobs end with it"
	endpoint := freeEndpoint(t)
	var own lockedBuilder
	logTo := func(w io.Writer, runID string) func(*rendezvous.Spec) {
		return func(s *rendezvous.Spec) { s.RunID, s.Logger = runID, slog.New(slog.NewTextHandler(w, nil)) }
	}
	meet(t, open(t, endpoint, 2, 2, "host0", nil), open(t, endpoint, 2, 2, "host1", logTo(&own, "job1")))
	if strings.Contains(own.String(), warning) {
		t.Errorf("the job of that agent is told: %s", own.String())
	}
	said := make(lines, 16)
	h := open(t, endpoint, 2, 2, "host2", logTo(said, "job2"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := h.Next(ctx); ended <- err }()
	said.wait(t, warning)
	cancel()
	<-ended
}

// end leaves or shuts down.
func end(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx)
}

// meet lets all nodes join at once and returns what they know.
func meet(t testing.TB, nodes ...rendezvous.Handler) []*rendezvous.Info {
	t.Helper()
	infos := make([]*rendezvous.Info, len(nodes))
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, h := range nodes {
		all.Go(func() { infos[i], errs[i] = h.Next(t.Context()) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	check(t, infos)
	return infos
}

// check checks that nodes agree about their round.
func check(t testing.TB, infos []*rendezvous.Info) {
	t.Helper()
	seen := map[int]bool{}
	for _, info := range infos {
		if info.Round != infos[0].Round || info.WorldSize != len(infos) || info.Rank < 0 || info.Rank >= len(infos) || seen[info.Rank] ||
			info.MasterAddr != infos[0].MasterAddr || info.MasterPort != infos[0].MasterPort {
			t.Fatalf("%+v beside %+v", info, infos[0])
		}
		seen[info.Rank] = true
		if r := info.Ranks; r != nil && (r.Base != 2*info.Rank || r.WorldSize != 2*len(infos)) {
			t.Errorf("rank %d has workers %+v", info.Rank, r)
		}
	}
	client, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: net.JoinHostPort(infos[0].MasterAddr, strconv.Itoa(infos[0].MasterPort)), Timeout: patience})
	if err != nil {
		t.Fatalf("the workers' store: %v", err)
	}
	defer client.Close()
	if there, err := client.Check(t.Context(), "left over"); err != nil || there {
		t.Errorf("the workers' store is not empty: %v, %v", there, err)
	}
	if err := client.Set(t.Context(), "left over", nil); err != nil {
		t.Error(err)
	}
	for i, info := range infos {
		if err := info.Store.Set(t.Context(), fmt.Sprint("from/", i), []byte("x")); err != nil {
			t.Error(err)
		}
	}
	for i, info := range infos {
		if err := info.Store.Wait(t.Context(), fmt.Sprint("from/", (i+1)%len(infos))); err != nil {
			t.Error(err)
		}
	}
}

// change waits for a change of a kind.
func change(t testing.TB, h rendezvous.Handler, want rendezvous.ChangeKind) rendezvous.Change {
	t.Helper()
	for {
		select {
		case c := <-h.Changes():
			if c.Kind == want {
				return c
			}
		case <-time.After(patience):
			t.Fatalf("no change %q", want)
		}
	}
}

func TestManyMeet(t *testing.T) {
	for _, n := range []int{2, 5, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			endpoint := freeEndpoint(t)
			var nodes []rendezvous.Handler
			for i := range n {
				nodes = append(nodes, open(t, endpoint, n, n, fmt.Sprint("host", i), nil))
			}
			meet(t, nodes...)
			infos := meet(t, nodes...)
			if infos[0].Round != 1 {
				t.Errorf("round %d", infos[0].Round)
			}
		})
	}
}

func TestMembership(t *testing.T) {
	endpoint := freeEndpoint(t)
	a, b := open(t, endpoint, 2, 3, "a", nil), open(t, endpoint, 2, 3, "b", nil)
	first := meet(t, a, b)

	// A third host makes the others come again.
	c := open(t, endpoint, 2, 3, "c", nil)
	joined := make(chan *rendezvous.Info, 1)
	go func() {
		info, err := c.Next(t.Context())
		if err != nil {
			t.Error(err)
		}
		joined <- info
	}()
	if got := change(t, a, rendezvous.NodesWaiting); got.Node != "c" {
		t.Errorf("change %+v", got)
	}
	change(t, b, rendezvous.NodesWaiting)
	infos := meetWith(t, joined, a, b)
	if infos[0].Rank != first[0].Rank || infos[1].Rank != first[1].Rank {
		t.Error("ranks are not sticky")
	}

	// One leaves, one is lost.
	if err := end(c.Leave); err != nil {
		t.Error(err)
	}
	if got := change(t, a, rendezvous.NodeLeft); got.Node != "c" || got.Rank != infos[2].Rank {
		t.Errorf("change %+v", got)
	}
	infos = meet(t, a, b)
	if infos[0].Round != 2 {
		t.Errorf("round %d", infos[0].Round)
	}

	// The end.
	done := make(chan error, 1)
	go func() { done <- end(b.Shutdown) }()
	change(t, a, rendezvous.Closed)
	if _, err := a.Next(t.Context()); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("Next after the end: %v", err)
	}
	if err := end(a.Shutdown); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// meetWith is meet with a node whose Next is under way.
func meetWith(t testing.TB, joined <-chan *rendezvous.Info, nodes ...rendezvous.Handler) []*rendezvous.Info {
	t.Helper()
	infos := make([]*rendezvous.Info, len(nodes))
	var all sync.WaitGroup
	for i, h := range nodes {
		all.Go(func() {
			var err error
			if infos[i], err = h.Next(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	infos = append(infos, <-joined)
	if t.Failed() {
		t.FailNow()
	}
	check(t, infos)
	return infos
}

func TestSpare(t *testing.T) {
	endpoint := freeEndpoint(t)
	on := func(host string) func(*rendezvous.Spec) { return func(c *rendezvous.Spec) { c.Host = host } }
	a, b := open(t, endpoint, 2, 2, "a", on("host1")), open(t, endpoint, 2, 2, "b", on("host1"))
	meet(t, a, b)
	said := make(lines, 16)
	spare := open(t, endpoint, 2, 2, "s", func(c *rendezvous.Spec) {
		c.Host, c.Logger = "host2", slog.New(slog.NewTextHandler(said, nil))
	})
	got := make(chan error, 1)
	go func() { _, err := spare.Next(t.Context()); got <- err }()
	said.wait(t, "waits as a spare")
	said.wait(t, " hosts=host1")
	meet(t, a, b) // it disturbs nobody
	go end(b.Shutdown)
	change(t, a, rendezvous.Closed)
	if err := <-got; !errors.Is(err, rendezvous.ErrRedundant) {
		t.Errorf("the spare's Next: %v", err)
	}
}

// A spare hears how the job ends also where the store only stores.
func TestSpareAtPlainStore(t *testing.T) {
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"}) // it has no sessions, as PyTorch's
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	endpoint, elsewhere := server.Addr().String(), func(c *rendezvous.Spec) { c.Settings.IsHost = new(bool) }
	a, b := open(t, endpoint, 2, 2, "a", elsewhere), open(t, endpoint, 2, 2, "b", elsewhere)
	meet(t, a, b)
	waits := make(chan struct{})
	told := sync.OnceFunc(func() { close(waits) })
	spare := open(t, endpoint, 2, 2, "s", func(c *rendezvous.Spec) {
		elsewhere(c)
		c.OnWaiting = func(w rendezvous.Waiting) {
			if w.Spare > 0 {
				told()
			}
		}
	})
	got := make(chan error, 1)
	go func() { _, err := spare.Next(t.Context()); got <- err }()
	select {
	case <-waits:
	case err := <-got:
		t.Fatalf("the spare's Next: %v", err)
	}
	a.End(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: "a", Cause: "boom"})
	if err := end(a.Shutdown); err != nil {
		t.Error(err)
	}
	err = <-got
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); !ok || ended.Cause != "boom" || !errors.Is(err, rendezvous.ErrRedundant) {
		t.Errorf("the spare's Next: %v", err)
	}
}

// lines are what a logger says.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}

func (l lines) wait(t testing.TB, text string) {
	t.Helper()
	for {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return
			}
		case <-time.After(patience):
			t.Fatalf("no log line with %q", text)
		}
	}
}

func TestServerLost(t *testing.T) {
	endpoint := freeEndpoint(t)
	a, b := open(t, endpoint, 2, 2, "a", nil), open(t, endpoint, 2, 2, "b", func(c *rendezvous.Spec) {
		no := false
		c.Settings.IsHost = &no
	})
	meet(t, a, b)
	if err := end(a.Leave); err != nil {
		t.Error(err)
	}
	c := change(t, b, rendezvous.Disconnected)
	if c.Err == nil || !strings.Contains(c.Err.Error(), endpoint) {
		t.Errorf("error %v", c.Err)
	}
	if _, err := b.Next(t.Context()); err == nil {
		t.Error("Next after the loss: no error")
	} else if _, ok := errors.AsType[*rendezvous.ConnectionError](err); !ok {
		t.Errorf("Next after the loss: %v", err)
	}
}

func TestJoinTimeout(t *testing.T) {
	h := open(t, freeEndpoint(t), 2, 2, "a", func(c *rendezvous.Spec) { c.Settings.Join = 50 * time.Millisecond })
	_, err := h.Next(t.Context())
	if e, ok := errors.AsType[*rendezvous.TimeoutError](err); !ok || e.Phase != "join" {
		t.Errorf("Next: %v", err)
	}
}

func TestManyRefuses(t *testing.T) {
	endpoint := freeEndpoint(t)
	a := open(t, endpoint, 1, 2, "a", nil)
	if _, err := a.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := open(t, endpoint, 1, 3, "b", nil)
	if _, err := b.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "Spec.MinNodes:MaxNodes is 1:3 on b and 1:2") {
		t.Errorf("another --nnodes: %v", err)
	}
	if _, err := c10d.New(rendezvous.Spec{RunID: "j", LocalWorldSize: 1, Endpoint: "localhost:0", MinNodes: 2, MaxNodes: 2}); err == nil || !strings.Contains(err.Error(), "port 0") {
		t.Errorf("port 0: %v", err)
	}
}

func TestStaticNodes(t *testing.T) {
	endpoint := freeEndpoint(t)
	var nodes []rendezvous.Handler
	for i := range 3 {
		h, err := static.New(rendezvous.Spec{
			RunID: "none", Role: "trainer", LocalWorldSize: 2, Host: fmt.Sprint("host", i),
			Endpoint: endpoint, NodeRank: i, MaxNodes: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, h)
		nodes = append(nodes, h)
	}
	for round := range 2 {
		for i, info := range meet(t, nodes...) {
			if info.Rank != i || info.Round != round || net.JoinHostPort(info.MasterAddr, strconv.Itoa(info.MasterPort)) != endpoint {
				t.Errorf("node %d: %+v", i, info)
			}
		}
	}
	end(nodes[2].Leave)
	if c := change(t, nodes[0], rendezvous.NodeLeft); c.Node != "host2" || c.Rank != 2 {
		t.Errorf("change %+v", c)
	}
}

// Those who are not listed are not let in, neither to the agents' store nor to the
// workers'; this host always is.
func TestAllow(t *testing.T) {
	endpoint := freeEndpoint(t)
	guard := func(c *rendezvous.Spec) {
		c.Settings.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	infos := meet(t, open(t, endpoint, 2, 2, "a", guard), open(t, endpoint, 2, 2, "b", guard))
	if infos[0].WorldSize != 2 {
		t.Errorf("%+v", infos[0])
	}
}

func TestBind(t *testing.T) {
	endpoint := freeEndpoint(t)
	_, port, _ := net.SplitHostPort(endpoint)
	bind := func(c *rendezvous.Spec) {
		c.Settings.Bind = "127.0.0.1"
		c.Endpoint = "127.0.0.2:" + port // names this host; it is at the other address alone
	}
	h := open(t, endpoint, 1, 2, "a", bind)
	if _, err := h.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", "127.0.0.2:"+port); err == nil {
		conn.Close()
		t.Error("it listens on 127.0.0.2")
	}
	if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
