//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// atOnce is what `muster restart` answers if the workers that have reported were so quick that
// their agent has not noted yet that all of them run.
const atOnce = "no workers of this host run at the moment"

// New workers run on all hosts after `muster restart` on one of them, whatever the backend, and
// no restart is counted.
func TestRestartAsked(t *testing.T) {
	for _, c := range hostsBackends {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 3+c.hosts)
			c.prepare(s)
			agents := s.startAll(3, "--nnodes 3")
			s.up(time.Time{}, 3)
			asked := time.Now()
			for {
				j := onHost(t, s.lab.Host(1), s.wrote, errand{argv: []string{filepath.Join(bin, "muster"), "restart", s.runID}})
				if j.status() == 0 {
					break
				}
				if !strings.Contains(j.errs(), atOnce) {
					t.Fatal(j.console())
				}
			}
			s.up(asked, 3)
			if n := s.all[len(s.all)-1].restart; n != 0 {
				s.fatalf("the restart count is %d, want 0", n)
			}
			s.finish(agents...)
			agents[0].says(" asks for new workers") // of host1, or of another if its worker was just being started
		})
	}
}

// An agent of torchrun takes part in a restart that an agent of muster is asked for: to it, a
// node has left and come back.
func TestMixedRestartAsked(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	for name, peers := range map[string][]peer{
		"muster hosts":           {{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}},
		"muster hosts, rank 1":   {{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "1"}},
		"torchrun hosts":         {{l: ours, addr: "1"}, {l: theirs, addr: "2", hosts: true}},
		"torchrun hosts, rank 0": {{l: ours, addr: "2"}, {l: theirs, addr: "1", hosts: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "2", "", "report:$TORCHELASTIC_RESTART_COUNT", "gate", "exit:0")
			agents := m.startAll(peers...)
			agents[0].await("0", "0")
			for {
				out, err := exec.Command(filepath.Join(bin, "muster"), "restart", itoa(agents[0].cmd.Process.Pid)).CombinedOutput()
				if err == nil {
					break
				}
				if !strings.Contains(string(out), atOnce) {
					t.Fatalf("%v: %s", err, out)
				}
			}
			agents[0].await("0", "0")
			m.gate.Open()
			wantAll(agents, 0)
		})
	}
}
