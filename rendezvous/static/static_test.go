package static_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

func freeEndpoint(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// MASTER_ADDR and MASTER_PORT are the endpoint in every round, and every round
// finds the store there empty. (spec/agent.md D1: torchrun's is not.)
func TestEveryRoundFindsTheStoreEmpty(t *testing.T) {
	endpoint := freeEndpoint(t)
	h, err := static.New(rendezvous.Spec{RunID: "none", Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Shutdown(t.Context())
	for round := range 3 {
		info, err := h.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.Round != round || info.Rank != 0 || info.WorldSize != 1 {
			t.Errorf("round %d is %+v", round, info)
		}
		client, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: endpoint, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if n, err := client.NumKeys(t.Context()); err != nil || n != 0 {
			t.Errorf("round %d: the store holds %d keys, %v, want 0", round, n, err)
		}
		if err := client.Set(t.Context(), "left over", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := info.Store.Set(t.Context(), "k", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if ok, err := client.Check(t.Context(), "none/k"); err != nil || !ok {
			t.Errorf("agents' keys are not under the run ID: %v, %v", ok, err)
		}
	}
}

// With a token the agents' keys are out of reach for whoever reaches the workers' store.
func TestAgentsKeysApart(t *testing.T) {
	endpoint := freeEndpoint(t)
	h, err := static.New(rendezvous.Spec{Endpoint: endpoint, RunID: "none", Settings: rendezvous.Settings{Access: rendezvous.Access{Token: "the token of this job"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Shutdown(t.Context())
	info, err := h.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := info.Store.Set(t.Context(), "k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	client, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: endpoint, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if n, err := client.NumKeys(t.Context()); err != nil || n != 0 {
		t.Errorf("the workers' store holds %d keys, %v", n, err)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h, err := static.New(rendezvous.Spec{RunID: "none", Endpoint: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Next(t.Context())
	if _, ok := errors.AsType[*rendezvous.ConnectionError](err); !ok || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("Next: %v, want a ConnectionError that names %s", err, l.Addr())
	}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
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
		{rendezvous.Spec{Endpoint: "localhost"}, "port is missing"},
		{rendezvous.Spec{Endpoint: "localhost:99999"}, "99999"},
		{rendezvous.Spec{Endpoint: "localhost:1", NodeRank: 1}, "node rank 1"},
	} {
		if _, err := static.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want an error with %q", tt.cfg, err, tt.want)
		}
	}
}

// bind= holds for a job on one host.
func TestBind(t *testing.T) {
	_, port, _ := net.SplitHostPort(freeEndpoint(t))
	cfg := rendezvous.Spec{RunID: "none", Endpoint: "master:" + port}
	cfg.Settings.Bind = "127.0.0.1"
	h, err := static.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Shutdown(t.Context())
	if _, err := h.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if nc, err := net.Dial("tcp", "127.0.0.2:"+port); err == nil {
		nc.Close()
		t.Error("it listens on 127.0.0.2")
	}
	if nc, err := net.Dial("tcp", "127.0.0.1:"+port); err != nil {
		t.Error(err)
	} else {
		nc.Close()
	}
}
