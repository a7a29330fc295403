package election_test

import (
	"context"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testcert"
	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	backend "github.com/muster-run/muster/rendezvous/etcd"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// A cluster that is there already, with TLS, certificates of clients, users and
// passwords.
func TestSecureCluster(t *testing.T) {
	t.Parallel()
	ca := testcert.New(t)
	cert, key := ca.Issue()
	clientCert, clientKey := ca.Issue()
	client, peer := freeAddress(t), freeAddress(t)
	cluster := spawn(t, exec.Command(etcd), map[string]string{
		"listen": client, "peer": peer, "dir": t.TempDir(), "cacert": ca.File, "cert": cert, "key": key})
	cluster.expect("ready")
	cluster.ask("auth alice wonder /muster/")

	good := election.Config{
		Elect:   pipe.Elect{RunID: "job", Addr: "host0:29400", Endpoints: []string{client}, TTL: pipe.Millis(10 * time.Second), CACert: ca.File, Cert: clientCert, Key: clientKey, User: "alice", Password: "wonder"},
		Program: muster,
	}
	agree(t, startAgent(t, good), startAgent(t, good))

	for _, tt := range []struct {
		name   string
		change func(*election.Config)
		want   string
	}{
		{"wrong password", func(c *election.Config) { c.Password = "wander" }, `etcd refuses user "alice": user or password is wrong`},
		{"unknown user", func(c *election.Config) { c.User = "bob" }, `etcd refuses user "bob"`},
		{"no user", func(c *election.Config) { c.User, c.Password = "", "" }, "etcd wants a user and a password"},
		{"no permission", func(c *election.Config) { c.User, c.Password = "nobody", "nothing" },
			`etcd's user "nobody" may not read and write /muster/job/: give its role readwrite on the prefix /muster/`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			if _, err := startAgent(t, cfg).tryLeader(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Leader: got %v, want %q in it", err, tt.want)
			}
		})
	}

	// As the backend has it: the password is that of a file.
	for password, want := range map[string]string{"wonder": "", "wander": "user or password is wrong"} {
		t.Run("password_file with "+password, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			settings, err := rendezvous.ParseSettings("etcd", map[string]string{"last_call_timeout": "1", "cacert": ca.File, "cert": clientCert, "key": clientKey,
				"user": "alice", "password_file": file})
			if err != nil {
				t.Fatal(err)
			}
			h, err := backend.New(rendezvous.Spec{RunID: "file", Endpoint: client, LocalAddr: "127.0.0.1", MinNodes: 1, MaxNodes: 1, LocalWorldSize: 1, Settings: settings,
				Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Shutdown(context.Background())
			if _, err := h.Next(t.Context()); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		})
	}

	stranger := testcert.New(t)
	for _, tt := range []struct {
		name   string
		change func(*election.Config)
		want   string
	}{
		{"other authority", func(c *election.Config) { c.CACert = stranger.File }, "certificate signed by unknown authority"},
		{"no TLS", func(c *election.Config) { c.CACert, c.Cert, c.Key = "", "", "" }, "no member of etcd answers: " + client + ": it speaks TLS"},
		{"nobody there", func(c *election.Config) { c.Endpoints = []string{freeAddress(t)} }, "connect: connection refused"},
		{"no such name", func(c *election.Config) { c.Endpoints = []string{"etcd.invalid:2379"} }, "etcd.invalid:2379: lookup etcd.invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			t.Log(startAgent(t, cfg).waits(tt.want))
		})
	}
}

// freeAddress is one on which nobody listens, with a port that the kernel gives to
// nobody who asks for any.
func freeAddress(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+mathrand.IntN(20_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}
