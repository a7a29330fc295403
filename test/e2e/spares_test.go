//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
				spare := m.start(peer{l: muster(t), addr: addr})
				for deadline := time.Now().Add(patience); !strings.Contains(spare.errs(), "waits as a spare"); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("no spare:\n%s", spare.console())
					}
				}
				agents = append(agents, spare)
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
