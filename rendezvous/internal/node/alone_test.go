package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/internal/node"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

func newHandler(t *testing.T, cfg rendezvous.Spec) rendezvous.Handler {
	t.Helper()
	if cfg.RunID == "" {
		cfg.RunID = "job1"
	}
	h, err := c10d.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	return h
}

func dial(t *testing.T, info *rendezvous.Info) *tcpstore.Client {
	t.Helper()
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{
		Addr: net.JoinHostPort(info.MasterAddr, strconv.Itoa(info.MasterPort)), Timeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Every round has a workers' store of its own, which the workers of another
// round can neither read nor reach. (spec/agent.md D1: torchrun keeps one.)
func TestEveryRoundHasAFreshStore(t *testing.T) {
	h := newHandler(t, rendezvous.Spec{Endpoint: "localhost:0"})
	first, err := h.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Rank != 0 || first.WorldSize != 1 || first.Round != 0 || first.MasterAddr != "127.0.0.1" {
		t.Errorf("first round is %+v", first)
	}
	if err := dial(t, first).Set(t.Context(), "default_pg/0", []byte("address of a dead worker")); err != nil {
		t.Fatal(err)
	}
	second, err := h.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second.Round != 1 {
		t.Errorf("second round is number %d", second.Round)
	}
	if n, err := dial(t, second).NumKeys(t.Context()); err != nil || n != 0 {
		t.Errorf("the second round's store holds %d keys, %v, want 0", n, err)
	}
	if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first.MasterPort))); err != nil {
		t.Errorf("the first round's store still listens: %v", err)
	} else {
		l.Close()
	}
}

func TestKeysOfARound(t *testing.T) {
	h := newHandler(t, rendezvous.Spec{Endpoint: "127.0.0.1:0", LocalAddr: "localhost"})
	info, err := h.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	addr, err := info.Store.Get(t.Context(), "MASTER_ADDR")
	if err != nil || string(addr) != "localhost" {
		t.Errorf("MASTER_ADDR = %q, %v", addr, err)
	}
	port, err := info.Store.Get(t.Context(), "MASTER_PORT")
	if err != nil || string(port) != strconv.Itoa(info.MasterPort) {
		t.Errorf("MASTER_PORT = %q, %v, want %d", port, err, info.MasterPort)
	}
}

// Two jobs may name one endpoint: the second is a client of the first's store.
func TestTwoJobsAtOneEndpoint(t *testing.T) {
	endpoint := freeEndpoint(t)
	a := newHandler(t, rendezvous.Spec{RunID: "a", Endpoint: endpoint})
	b := newHandler(t, rendezvous.Spec{RunID: "b", Endpoint: endpoint})
	infoA, err := a.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	infoB, err := b.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if infoA.MasterPort == infoB.MasterPort {
		t.Errorf("both jobs' workers meet at port %d", infoA.MasterPort)
	}
	for _, info := range []*rendezvous.Info{infoA, infoB} {
		port, err := info.Store.Get(t.Context(), "MASTER_PORT")
		if err != nil || string(port) != strconv.Itoa(info.MasterPort) {
			t.Errorf("MASTER_PORT = %q, %v, want %d", port, err, info.MasterPort)
		}
	}
}

func TestEndpointTakenByAStranger(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	yes := true
	h := newHandler(t, rendezvous.Spec{Settings: rendezvous.Settings{IsHost: &yes}, Endpoint: l.Addr().String()})
	_, err = h.Next(t.Context())
	if connErr, ok := errors.AsType[*rendezvous.ConnectionError](err); !ok || !strings.Contains(connErr.Error(), l.Addr().String()) {
		t.Errorf("Next: %v, want a ConnectionError that names %s", err, l.Addr())
	}
}

func TestPrivateStore(t *testing.T) {
	h := newHandler(t, rendezvous.Spec{Endpoint: "localhost:0", PrivateStore: true})
	if h.UseAgentStore() {
		t.Error("UseAgentStore is true")
	}
	info, err := h.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Worker rank 0 hosts the store there.
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: ":" + strconv.Itoa(info.MasterPort)})
	if err != nil {
		t.Fatalf("worker rank 0 cannot listen on MASTER_PORT: %v", err)
	}
	server.Close()
}

func TestShutdown(t *testing.T) {
	h := newHandler(t, rendezvous.Spec{Endpoint: "localhost:0"})
	for range 2 {
		if err := h.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Next(t.Context()); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("Next after Shutdown: %v, want ErrClosed", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		cfg  rendezvous.Spec
		want string
	}{
		{rendezvous.Spec{Endpoint: "localhost:0"}, "run ID"},
		{rendezvous.Spec{RunID: "a", Endpoint: "localhost:x"}, "localhost:x"},
		{rendezvous.Spec{RunID: "a", Endpoint: "/tmp/x", MinNodes: 2, MaxNodes: 2, Settings: rendezvous.Settings{StoreType: "file"}}, "store_type=file"},
	} {
		if _, err := c10d.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want an error with %q", tt.cfg, err, tt.want)
		}
	}
}

// A job of one host needs no file to meet in.
func TestFileStoreOfOneHost(t *testing.T) {
	cfg := rendezvous.Spec{Endpoint: "localhost:0", Settings: rendezvous.Settings{StoreType: "file"}}
	if _, err := newHandler(t, cfg).Next(t.Context()); err != nil {
		t.Error(err)
	}
}

// bind= and allow= hold for a job on one host too, for the agents' store and the workers'.
func TestGuardOfOneHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs 127.0.0.2")
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(freeEndpoint(t))
	cfg := rendezvous.Spec{Endpoint: name + ":" + port, LocalAddr: name}
	cfg.Settings.Bind = "127.0.0.2"
	cfg.Settings.Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	info, err := newHandler(t, cfg).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{port, strconv.Itoa(info.MasterPort)} {
		if nc, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			nc.Close()
			t.Errorf("port %s: it listens on 127.0.0.1", port)
		}
		if nc, err := net.Dial("tcp", "127.0.0.2:"+port); err != nil {
			t.Errorf("port %s: %v", port, err)
		} else {
			nc.Close()
		}
	}
	if got := node.ServerConfig(cfg).Allow; len(got) < 3 || got[len(got)-1] != cfg.Settings.Allow[0] {
		t.Errorf("allowed are %v, want this host and %v", got, cfg.Settings.Allow)
	}
}

// What is open to this host alone stays so, whatever bind= says.
func TestBindOfALoopbackEndpoint(t *testing.T) {
	cfg := rendezvous.Spec{Endpoint: freeEndpoint(t)}
	cfg.Settings.Bind = "192.0.2.1"
	info, err := newHandler(t, cfg).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dial(t, info)
}

// counting counts the questions about keys.
type counting struct {
	store.Store
	asked int
}

func (c *counting) Check(ctx context.Context, keys ...string) (bool, error) {
	c.asked++
	return c.Store.Check(ctx, keys...)
}

// A round's number is what somebody has written: few earlier ones are looked at.
func TestEarlierRounds(t *testing.T) {
	s := &counting{Store: store.NewMemory()}
	set := func(round int) {
		r := store.Prefix(fmt.Sprintf("torch.rendezvous.job1.%d", round), s)
		if err := errors.Join(r.Set(t.Context(), "MASTER_ADDR", []byte("a")), r.Set(t.Context(), "MASTER_PORT", []byte(strconv.Itoa(round%1000+1)))); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	set(1 << 20)
	for _, tt := range []struct{ round, port, asked int }{
		{1, 1, 1}, {64, 1, 64}, {65, 0, 64}, {1 << 30, 0, 64}, {1<<20 + 2, 1<<20%1000 + 1, 2}, {0, 0, 0},
	} {
		s.asked = 0
		if _, port, _ := node.Published(t.Context(), s, tt.round); port != tt.port || s.asked != tt.asked {
			t.Errorf("before round %d: port %d, want %d; looked at %d rounds, want %d", tt.round, port, tt.port, s.asked, tt.asked)
		}
	}
}

// A limit that was given holds for connecting, too, where the endpoint would have until the join
// timeout.
func TestReadTimeoutBoundsConnecting(t *testing.T) {
	settings, err := rendezvous.ParseSettings("c10d", map[string]string{"is_host": "0", "read_timeout": "1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cfg := rendezvous.Spec{Endpoint: freeEndpoint(t), MinNodes: 2, MaxNodes: 2, LocalWorldSize: 1, Settings: settings}
	if _, err = newHandler(t, cfg).Next(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("%v; want an error after 1s", err)
	}
}
