//go:build linux

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
)

// muster stop ends spares too, whichever agent is asked: none of them begins the job again.
func TestStopEndsSpares(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]int{"the holder": 0, "a member": 1, "a spare": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "1:2", "", "report:$WORLD_SIZE", "gate", "exit:0")
			m.env = []string{"LOGLEVEL=INFO"} // which has a line about a spare
			agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
			agents[0].await("2", "2")
			for _, addr := range []string{"3", "4"} {
				agents = append(agents, m.startSpare(addr))
			}
			pid := itoa(agents[asked].cmd.Process.Pid) // and by it no other agent of this host
			if out, err := exec.Command(filepath.Join(bin, "muster"), "stop", pid).CombinedOutput(); err != nil {
				t.Errorf("muster stop: %v: %s", err, out)
			}
			for i, j := range agents {
				want := 1
				if i >= 2 && i != asked { // one that began the job again would wait at the gate
					want = 0
				}
				// The spare that is asked has its own order, unless it hears of the end first.
				if got := j.status(); got != want && (i < 2 || got != 0) {
					t.Errorf("agent %d: status %d, want %d\n%s", i, got, want, j.console())
				}
			}
		})
	}
}

// A spare ends as the job does that did not need it, while that is still stopping its workers.
func TestSpareEndsAsTheJob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		last   string // what the workers do once the gate is open
		signal bool   // to an agent of the round
		status int
		says   string
	}{
		{"succeeded", "exit:0", false, 0, "without needing this host"},
		{"failed", "exit:3", false, 1, "failed before this host joined it; on host "},
		{"preempted", "exit:0", true, 75, "the job is preempted: host "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "1:2", "--preemption-signals TERM --max-restarts 0", "report:$WORLD_SIZE", "gate", tt.last)
			m.env = []string{"LOGLEVEL=INFO"}
			agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
			agents[0].await("2", "2")
			agents = append(agents, m.startSpare("3"))
			if tt.signal {
				agents[1].signal(syscall.SIGTERM)
			} else {
				m.gate.Open()
			}
			for i, j := range agents {
				if got := j.status(); got != tt.status {
					t.Errorf("agent %d: status %d, want %d\n%s", i, got, tt.status, j.console())
				}
			}
			agents[2].says(tt.says)
		})
	}
}

// startSpare starts an agent, and returns once it waits as a spare.
func (m *mixedJob) startSpare(addr string) *job {
	m.t.Helper()
	spare := m.start(peer{l: muster(m.t), addr: addr})
	spare.awaitErrs("waits as a spare", 1)
	return spare
}

// A job that is started again under its ID while the one before still saves its checkpoints waits
// for that, and then trains: it neither ends with it nor holds it up.
func TestAgainWhileTheJobEnds(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"c10d", "static"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			flags := func(host int) string {
				common := fmt.Sprintf("--nnodes 2 --nproc-per-node 1 --rdzv-id job1 --preemption-signals TERM --rdzv-endpoint 127.0.0.1:%d ", port)
				if backend == "static" {
					return common + fmt.Sprint("--rdzv-backend static --node-rank ", host)
				}
				return common + "--rdzv-backend c10d --rdzv-conf close_timeout=600"
			}
			start := func(s setup, host int, steps ...string) *job { return workers(t, muster(t), s, flags(host), steps...) }
			saves := []string{"catch:TERM", "report:saving", "gate", "exit:0"}
			first := start(setup{}, 0, saves...)
			same := setup{env: testproc.Env(first.board.Board, first.gate, "")}
			old := []*job{first, start(same, 1, saves...)}
			first.await("ready 0", "ready 1")
			old[1].signal(syscall.SIGTERM)
			first.await("SIGTERM at 0", "SIGTERM at 1", "saving", "saving")
			again := []*job{start(same, 1, "report:trains", "exit:0")}
			again[0].awaitErrs("has not ended yet", 1)
			if backend == "c10d" {
				again = append(again, start(same, 0, "report:trains", "exit:0"))
				again[1].awaitErrs("has not ended yet", 1)
			}
			first.gate.Open()
			for _, j := range old {
				j.want(75)
			}
			if backend == "static" { // it could not listen before
				again = append(again, start(same, 0, "report:trains", "exit:0"))
			}
			for _, j := range again {
				j.want(0)
			}
			first.await("trains", "trains")
		})
	}
}
