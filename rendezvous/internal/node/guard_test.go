package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/static"
	"github.com/muster-run/muster/store/tcpstore"
)

const jobToken = "the token of this job"

// A guarded job is one whose agents have a token, certificates, or both.
type guarded struct {
	name   string
	secure func(*rendezvous.Settings)
}

func guardedJobs(t *testing.T) []guarded {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	withToken := func(s *rendezvous.Settings) { s.Token = jobToken }
	withTLS := func(s *rendezvous.Settings) { s.TLS.CACert, s.TLS.Cert, s.TLS.Key = ca.File, cert, key }
	return []guarded{
		{"token", withToken}, {"TLS", withTLS},
		{"TLS and token", func(s *rendezvous.Settings) { withToken(s); withTLS(s) }},
	}
}

// A way is how the agents of a job meet.
type way struct {
	name string
	make func(t *testing.T, i int, name string, secure func(*rendezvous.Settings)) rendezvous.Handler
	port func() string // where strangers go
}

func ways(t *testing.T) []*way {
	t.Helper()
	hosted, fixed, b := freeEndpoint(t), freeEndpoint(t), newBallot()
	return []*way{
		{"c10d", func(t *testing.T, _ int, name string, secure func(*rendezvous.Settings)) rendezvous.Handler {
			return open(t, hosted, 2, 2, name, func(c *rendezvous.Spec) { secure(&c.Settings) })
		}, func() string { return hosted }},
		{"static", func(t *testing.T, i int, name string, secure func(*rendezvous.Settings)) rendezvous.Handler {
			cfg := rendezvous.Spec{
				RunID: "none", Role: "trainer", LocalWorldSize: 2, Host: name,
				Endpoint: fixed, NodeRank: i, MaxNodes: 2,
			}
			secure(&cfg.Settings)
			h, err := static.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			atEnd(t, h)
			return h
		}, func() string { return fixed }},
		{"elected", func(t *testing.T, _ int, name string, secure func(*rendezvous.Settings)) rendezvous.Handler {
			return elected(t, b, 2, 2, name, secure)
		}, func() string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return strings.Split(b.leader, ",")[0]
		}},
	}
}

// Agents that have what the job wants meet, again and again; without it nobody joins, at once,
// and what strangers try changes nothing.
func TestGuardedJob(t *testing.T) {
	for _, job := range guardedJobs(t) {
		for _, w := range ways(t) {
			t.Run(w.name+" with "+job.name, func(t *testing.T) {
				a, b := w.make(t, 0, "a", job.secure), w.make(t, 1, "b", job.secure)
				meet(t, a, b)
				for name, change := range map[string]func(*rendezvous.Settings){
					"none":         func(*rendezvous.Settings) {},
					"other token":  func(s *rendezvous.Settings) { s.Token = "not the token of this job" },
					"certificates": strangersCertificate(t),
				} {
					start := time.Now()
					_, err := w.make(t, 1, "stranger", change).Next(t.Context())
					if err == nil || !strings.Contains(err.Error(), "; give ") {
						t.Errorf("a stranger with %s: %v", name, err)
					}
					if took := time.Since(start); took > patience/2 {
						t.Errorf("it took %v to refuse one with %s", took, name)
					}
				}
				attack(t, w.port())
				meet(t, a, b)
				select {
				case c := <-a.Changes():
					t.Errorf("change %+v", c)
				default:
				}
			})
		}
	}
}

func strangersCertificate(t *testing.T) func(*rendezvous.Settings) {
	ca := testcert.New(t)
	cert, key := ca.Issue()
	return func(s *rendezvous.Settings) { s.TLS.CACert, s.TLS.Cert, s.TLS.Key = ca.File, cert, key }
}

// attack does what somebody would who has read the source.
func attack(t *testing.T, addr string) {
	t.Helper()
	cfg := tcpstore.ClientConfig{Addr: addr, Timeout: patience, Logger: slog.New(slog.DiscardHandler)}
	if nc, err := tcpstore.DialSession(t.Context(), cfg, "rendezvous"); err == nil {
		nc.Close()
		t.Error("a stranger has a session, and could join, become rank 0, or close the job")
	}
	for _, key := range []string{"torch.rendezvous.job1", "torch.rendezvous.job1.0/muster/failed", "muster.job1/agents"} {
		client, err := tcpstore.Dial(t.Context(), cfg)
		if err != nil {
			continue
		}
		t.Errorf("a stranger reaches the store: %v", client.Set(t.Context(), key, []byte("forged")))
		client.Close()
	}
	for i := range 200 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(nc, "%d", i)
		nc.Close()
	}
}

// An agent with a token does not use a store that cannot prove that it has it, and says so
// at once.
func TestOpenStore(t *testing.T) {
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, job := range guardedJobs(t) {
		h := open(t, server.Addr().String(), 2, 2, "a", func(c *rendezvous.Spec) { job.secure(&c.Settings) })
		_, err = h.Next(t.Context())
		var fault *tcpstore.ConnectError
		if !errors.As(err, &fault) || fault.Attempts > 2 || !strings.Contains(err.Error(), "cannot prove that it belongs to the job") {
			t.Errorf("%s: %v", job.name, err)
		}
	}
	if keys, err := server.Store().ListKeys(t.Context()); err != nil || len(keys) > 0 {
		t.Errorf("keys %q, %v", keys, err)
	}
}

// An agent with a token learns that the agent which holds the rendezvous has none, and that
// one what the other has.
func TestHolderWithoutToken(t *testing.T) {
	for _, job := range guardedJobs(t)[:2] {
		t.Run(job.name, func(t *testing.T) {
			said := make(lines, 64)
			endpoint := freeEndpoint(t)
			a := open(t, endpoint, 2, 2, "a", func(c *rendezvous.Spec) { c.Logger = slog.New(slog.NewTextHandler(said, nil)) })
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				_, err := a.Next(ctx)
				gone <- err
			}()
			connect(t, endpoint).Close()
			_, err := open(t, endpoint, 2, 2, "b", func(c *rendezvous.Spec) { job.secure(&c.Settings) }).Next(t.Context())
			const want = "the server is muster's, and has no token or certificates to prove that it belongs to the job, tried 2 times"
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "; give all agents of the job, and muster store, the same token_file") {
				t.Errorf("got %v, want %q in it", err, want)
			}
			cancel()
			<-gone
			if err := end(a.Shutdown); err != nil {
				t.Error(err)
			}
			text := ""
			for len(said) > 0 {
				text += <-said
			}
			if job.name == "token" && (strings.Count(text, "an agent with a token, and this store has none: give all agents the same one") != 1 ||
				!strings.Contains(text, "more connections were refused: the agents have a token, but this store has none") || strings.Contains(text, "did not begin as a client")) {
				t.Errorf("the holder says:\n%s", text)
			}
		})
	}
}

// A job of one host whose endpoint others can reach is guarded, too.
func TestGuardedAlone(t *testing.T) {
	endpoint := freeEndpoint(t)
	h := open(t, endpoint, 1, 1, "a", func(c *rendezvous.Spec) { c.Settings.Token = jobToken })
	if _, err := h.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	attack(t, endpoint)
}

// An agents' guard by certificates needs all files.
func TestCertificatesTogether(t *testing.T) {
	spec := rendezvous.Spec{RunID: "j", LocalWorldSize: 1, Endpoint: "h:1", MinNodes: 2, MaxNodes: 2}
	spec.Settings.TLS.CACert = testcert.New(t).File
	_, err := c10d.New(spec)
	if err == nil || !strings.Contains(err.Error(), "give cacert, cert and key together") {
		t.Errorf("got %v", err)
	}
}
