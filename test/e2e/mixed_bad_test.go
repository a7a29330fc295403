//go:build linux

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store/tcpstore"
)

const stateKey = "torch.rendezvous.mixed"

// foreignText is a value of the state's key from the recorded ones.
func foreignText(t testing.TB, id string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "rendezvous", "internal", "pickle", "testdata", "rendezvous-state-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	type vector struct{ ID, Base64 string }
	var all struct {
		States     []vector
		MustReject []vector `json:"must_reject"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, v := range append(all.States, all.MustReject...) {
		if v.ID == id {
			return []byte(v.Base64)
		}
	}
	t.Fatalf("no vector %q", id)
	return nil
}

// serveStore serves the job's endpoint from this process; with rooms it holds
// rendezvous, otherwise it only stores, as PyTorch's does.
func (m *mixedJob) serveStore(rooms bool) *tcpstore.Server {
	m.t.Helper()
	cfg := tcpstore.ServerConfig{Addr: "127.0.0.1:" + itoa(m.port)}
	if rooms {
		cfg.Prepare = func(s *tcpstore.Server) { c10d.Serve(s, nil) }
	}
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { server.Close() })
	return server
}

// What another program has put at the state's key is named, and ends the job where
// it cannot be replaced.
func TestMixedBadState(t *testing.T) {
	t.Parallel()
	for id, want := range map[string][]string{
		"1.13.0/elastic/2": {"PyTorch 1.13 or older", "no newer agent can"},
		"os-system":        {`key "torch.rendezvous.mixed" cannot be read`, "posix"},
		"garbage":          {`key "torch.rendezvous.mixed" cannot be read`},
		"huge-length":      {`key "torch.rendezvous.mixed" cannot be read`},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "1:2", "", "exit:0")
			store := m.serveStore(false).Store()
			if err := store.Set(t.Context(), stateKey, foreignText(t, id)); err != nil {
				t.Fatal(err)
			}
			j := m.start(peer{l: muster(t), addr: "1"}).want(1)
			j.says(append(want, "127.0.0.1:"+itoa(m.port))...)
			j.saysNot("panic", "goroutine")
		})
	}
}

// Where the rendezvous is ours, a value that is not a state changes nothing, before
// and after the job has begun.
func TestMixedPoisonedHolder(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "1:2", "", "ready", "gate", "exit:0")
	store := m.serveStore(true).Store()
	poison := foreignText(t, "os-system")
	if err := store.Set(t.Context(), stateKey, poison); err != nil {
		t.Fatal(err)
	}
	j := m.start(peer{l: muster(t), addr: "1"}).await("ready 0")
	client, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: "127.0.0.1:" + itoa(m.port)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, text := range [][]byte{poison, foreignText(t, "1.13.0/elastic/2"), []byte("?"), nil, []byte(base64.StdEncoding.EncodeToString([]byte("no pickle")))} {
		now, err := client.Get(t.Context(), stateKey)
		if err == nil {
			_, err = client.CompareAndSet(t.Context(), stateKey, now, text)
		}
		if err == nil {
			err = client.Set(t.Context(), stateKey, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		now, err = client.Get(t.Context(), stateKey)
		if err != nil {
			t.Fatal(err)
		}
		// A complete round of one node, which is a participant and has a heartbeat.
		state, err := base64.StdEncoding.DecodeString(string(now))
		if err != nil || !bytes.Contains(state, []byte("\x8c\x08complete\x88")) || bytes.Count(state, []byte("_NodeDesc")) != 2 {
			t.Fatalf("after %.40q: state %q, %v", text, state, err)
		}
	}
	m.gate.Open()
	j.want(0)
}

// An agent whose --nnodes differs completes a round that the others' rules do not
// allow. They say so.
func TestMixedNodesDiffer(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	const says = "has 2 nodes, but --nnodes is 3 here: an agent with another --nnodes takes part"
	t.Run("muster hosts", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "3", "", "exit:0")
		agents := m.startAll(peer{l: ours, addr: "1", hosts: true}, peer{l: theirs, addr: "2", flags: "--nnodes 1:2"})
		wantAll(agents, 1)
		agents[0].says(says)
	})
	t.Run("torchrun hosts", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "3", "", "exit:0")
		// torchrun waits that long for the ranks of a node that has gone, and must not
		// begin before ours is there.
		m.conf = "read_timeout=10,last_call_timeout=100"
		agents := []*job{m.start(peer{l: theirs, addr: "1", hosts: true, flags: "--nnodes 1:2"})}
		m.awaitServer(agents[0]) // ours waits for it no longer than that, too
		agents = append(agents, m.start(peer{l: ours, addr: "2"}))
		wantAll(agents, 1)
		agents[1].says(says)
	})
	t.Run("muster refuses muster", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "1:2", "", "ready", "gate", "exit:0")
		first := m.start(peer{l: ours, addr: "1", hosts: true}).await("ready 0")
		m.start(peer{l: ours, addr: "2", flags: "--nnodes 3"}).want(1).says("--nnodes is 3:3", "and 1:2 on the hosts that came before")
		m.gate.Open()
		first.want(0)
	})
}

// At a store that only stores, one run ID is one job: a second one is told that its name
// is used up.
func TestMixedEndpointIsOther(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "1:2", "", "exit:0")
	m.serveStore(false)
	m.start(peer{l: muster(t), addr: "1"}).want(0)
	j := m.start(peer{l: muster(t), addr: "1"}).want(1)
	if !strings.Contains(j.errs(), "another --rdzv-id") {
		t.Errorf("%s", j.console())
	}
}
