//go:build linux

package e2e

import (
	"bufio"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// MASTER_PORT stays the same after a restart on several hosts, as docs/differences.md says.
func TestMasterPortOfHosts(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--max-restarts 1", "r0:report:$MASTER_PORT", "gate", "r1:a0:exit:3", "a0:hang", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	before := agents[0].line()
	m.gate.Open()
	if after := agents[0].line(); after != before {
		t.Errorf("MASTER_PORT is %s, and after a restart %s", before, after)
	}
	wantAll(agents, 0)
}

// A worker that fails on one side makes both sides start again, and the second
// attempt succeeds. Only the agent whose worker failed counts a restart.
func TestMixedRestarts(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	tests := map[string]struct {
		peers []peer
		fails int // index of the peer whose worker fails
	}{
		"muster hosts, torchrun's worker fails": {[]peer{{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}}, 1},
		"muster hosts, muster's worker fails":   {[]peer{{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "1"}}, 0},
		"torchrun hosts, its worker fails":      {[]peer{{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2"}}, 0},
		"torchrun hosts, muster's worker fails": {[]peer{{l: theirs, addr: "2", hosts: true}, {l: ours, addr: "1"}}, 1},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := tests[name]
			dir := t.TempDir()
			m := newMixed(t, "2", "--max-restarts 1", "report:here", "gate", "dump:"+dir, "exit:0")
			tt.peers[tt.fails].steps = []string{"report:failing $TORCHELASTIC_RESTART_COUNT", "a0:exit:3", "gate", "dump:" + dir, "exit:0"}
			agents := m.startAll(tt.peers...)
			agents[0].await("failing 0", "failing 1", "here")
			m.gate.Open()
			wantAll(agents, 0)
			workers := dumps(t, dir, 2)
			agree(t, workers, sizes(tt.peers))
			for _, w := range workers {
				want := "0"
				if slices.ContainsFunc(w.Argv, func(s string) bool { return strings.HasPrefix(s, "report:failing") }) {
					want = "1"
				}
				if got := w.Env["TORCHELASTIC_RESTART_COUNT"]; got != want {
					t.Errorf("rank %s: TORCHELASTIC_RESTART_COUNT is %s, want %s", w.Env["RANK"], got, want)
				}
			}
		})
	}
}

// In a static job with a host of PyTorch's the rounds share a store: what ended one does not end
// the next again.
func TestMixedStaticRestarts(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "3", "--max-restarts 3", "report:attempt $TORCHELASTIC_RESTART_COUNT", "a0:hang", "exit:0")
	m.static = true
	fails := []string{"gate", "a0:exit:3", "exit:0"}
	agents := m.startAll(peer{l: muster(t), addr: "0", steps: fails}, peer{l: muster(t), addr: "1"},
		peer{l: torchrun(t), addr: "2", steps: fails})
	agents[0].await("attempt 0")
	m.gate.Open()
	agents[0].await("attempt 1")
	wantAll(agents, 0)
	if n := strings.Count(agents[1].errs(), "restarting the worker group with it"); n != 1 {
		t.Errorf("the second host has followed the first %d times", n)
	}
}

// One agent of two is told to stop. What happens to the other depends on who
// holds the rendezvous and on what the other is.
func TestMixedLeaves(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	const steps = "report:$GROUP_WORLD_SIZE"

	// Muster learns of torchrun's end from the keep-alives that stop, and continues
	// alone.
	t.Run("torchrun leaves muster", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "1:2", "", steps, "gate", "exit:0")
		m.conf = "last_call_timeout=20"
		stays := m.start(peer{l: ours, addr: "1", hosts: true})
		leaves := m.start(peer{l: theirs, addr: "2"})
		stays.await("2", "2")
		m.board.forget() // a round of one, if torchrun was late
		leaves.signal(syscall.SIGTERM)
		stays.await("1")
		m.gate.Open()
		wantAll([]*job{stays}, 0)
		stays.says("a node of the round is lost")
		leaves.status()
	})
	// Nobody can continue without the store.
	t.Run("muster leaves torchrun without a store", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "1:2", "", steps, "gate", "exit:0")
		m.conf = "last_call_timeout=20"
		leaves := m.start(peer{l: ours, addr: "1", hosts: true})
		stays := m.start(peer{l: theirs, addr: "2"})
		stays.await("2", "2")
		leaves.signal(syscall.SIGTERM)
		wantAll([]*job{leaves, stays}, 1)
	})
	t.Run("torchrun leaves muster without a store", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "1:2", "", steps, "gate", "exit:0")
		m.conf = "last_call_timeout=20"
		leaves := m.start(peer{l: theirs, addr: "1", hosts: true})
		stays := m.start(peer{l: ours, addr: "2"})
		stays.await("2", "2")
		leaves.signal(syscall.SIGTERM)
		wantAll([]*job{stays}, 1)
		stays.says("127.0.0.1", "lost", "the rendezvous", "cannot outlive it") // in the round, or in the next one
		leaves.status()
	})
	// torchrun does not act on an agent that leaves: its workers continue.
	t.Run("muster leaves torchrun", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "1:2", "", steps, "gate", "report:done", "hang")
		m.conf = "last_call_timeout=20"
		stays := m.start(peer{l: theirs, addr: "1", hosts: true})
		leaves := m.start(peer{l: ours, addr: "2"})
		stays.await("2", "2")
		leaves.signal(syscall.SIGTERM)
		leaves.want(1)
		m.gate.Open()
		stays.await("done")
		stays.signal(syscall.SIGTERM)
		stays.status()
	})
}

// A third agent joins a job of two, which starts again once.
func TestMixedJoins(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	tests := map[string]struct {
		peers []peer
		third peer
	}{
		"torchrun joins, muster leads":      {[]peer{{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}}, peer{l: theirs, addr: "3"}},
		"muster joins, torchrun leads":      {[]peer{{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2"}}, peer{l: ours, addr: "3"}},
		"muster joins muster's and leads":   {[]peer{{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "3"}}, peer{l: ours, addr: "1"}},
		"muster joins torchrun's and leads": {[]peer{{l: theirs, addr: "2", hosts: true}, {l: theirs, addr: "3"}}, peer{l: ours, addr: "1"}},
		"torchrun joins muster's":           {[]peer{{l: ours, addr: "1", hosts: true}, {l: ours, addr: "2"}}, peer{l: theirs, addr: "3"}},
		"torchrun joins muster's and leads": {[]peer{{l: ours, addr: "2", hosts: true}, {l: ours, addr: "3"}}, peer{l: theirs, addr: "1"}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := tests[name]
			dir := t.TempDir()
			m := newMixed(t, "2:3", "", "report:$RANK of $WORLD_SIZE", "gate", "dump:"+dir, "exit:0")
			m.conf = "last_call_timeout=20" // time for a torchrun to come back on a busy machine
			agents := m.startAll(tt.peers...)
			agents[0].await("0 of 2", "1 of 2")
			agents = append(agents, m.start(tt.third))
			agents[0].await("0 of 3", "1 of 3", "2 of 3")
			if again := m.board.seen; again["0 of 2"] > 0 || again["1 of 2"] > 0 {
				t.Errorf("a round of two came before that of three")
			}
			m.gate.Open()
			wantAll(agents, 0)
			agree(t, dumps(t, dir, 3), []int{1, 1, 1})
		})
	}
}

// A worker fails for good on one side. The other side's workers, which would continue
// for ever, are stopped.
func TestMixedFails(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	fails, goesOn := []string{"ready", "gate", "exit:3"}, []string{"ready", "hang"}
	tests := map[string]struct {
		peers []peer
		store bool
		says  string // muster, of the other's failure: a pattern
	}{
		"muster hosts, muster's worker fails": {peers: []peer{
			{l: ours, addr: "1", hosts: true, steps: fails}, {l: theirs, addr: "2", steps: goesOn}}},
		"torchrun hosts, muster's worker fails": {peers: []peer{
			{l: theirs, addr: "1", hosts: true, steps: goesOn}, {l: ours, addr: "2", steps: fails}}},
		"muster store hosts, muster's worker fails": {store: true, peers: []peer{
			{l: theirs, addr: "1", steps: goesOn}, {l: ours, addr: "2", steps: fails}}},
		"muster hosts, torchrun's worker fails": {says: "has ended the job", peers: []peer{
			{l: ours, addr: "1", hosts: true, steps: goesOn}, {l: theirs, addr: "2", steps: fails}}},
		"torchrun hosts, torchrun's worker fails": {says: "has ended the job|lost the connection to the rendezvous", peers: []peer{
			{l: theirs, addr: "1", hosts: true, steps: fails}, {l: ours, addr: "2", steps: goesOn}}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := tests[name]
			m := newMixed(t, "2", "")
			if tt.store {
				m.startStore()
			}
			agents := m.startAll(tt.peers...)
			agents[0].await("ready 0", "ready 1")
			m.gate.Open()
			wantAll(agents, 1)
			for i, p := range tt.peers {
				if p.l.name == ours.name && tt.says != "" && grep(agents[i].errs(), tt.says) == nil {
					t.Errorf("muster does not say %q\n%s", tt.says, agents[i].console())
				}
			}
		})
	}
}

// A torchrun agent whose workers have succeeded sends no keep-alives from the exit
// barrier. Muster's workers continue while it counts as lost.
func TestMixedSilentInExitBarrier(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	for name, musterHosts := range map[string]bool{"muster hosts": true, "torchrun hosts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			r.SetReadDeadline(time.Now().Add(patience))
			m := newMixed(t, "2", "", "ready", "gate", "exit:0")
			m.env = []string{"LOGLEVEL=INFO"}
			agents := m.startAll(
				peer{l: ours, addr: "1", hosts: musterHosts, errs: w},
				peer{l: theirs, addr: "2", hosts: !musterHosts, steps: []string{"ready", "exit:0"}})
			w.Close()
			agents[0].await("ready 0", "ready 1")
			var said []string
			for lines := bufio.NewScanner(r); lines.Scan(); {
				said = append(said, lines.Text())
				if strings.Contains(lines.Text(), "after its workers had succeeded; going on") {
					m.gate.Open()
					rest := collect(r)
					wantAll(agents, 0)
					said = append(said, rest())
					if again := agents[0].rest(); len(again) > 0 {
						t.Errorf("workers started again: %q\n%s", again, strings.Join(said, "\n"))
					}
					return
				}
			}
			t.Errorf("muster did not go on:\n%s", strings.Join(said, "\n"))
		})
	}
}
