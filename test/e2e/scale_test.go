//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A job of three hosts is wanted to have two, then three, then one: hosts become spares and come
// back, whichever agent is asked. The loss of the agent that holds the rendezvous changes nothing.
func TestScale(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c10d", "etcd", "quorum"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := backend(t, name)
			s := newSite(t, 3+c.hosts)
			c.prepare(s)
			agents := s.startAll(3, "--nnodes 1:3 --want 2")
			up := s.running(time.Time{}, 2)
			for i, want := range []int{3, 1} {
				asked := time.Now()
				s.scale(i, want)
				up = s.running(asked, want)
				s.agree(up)
				if up[0].restart != 0 {
					t.Errorf("the restart count is %d, want 0", up[0].restart)
				}
			}
			for deadline := time.Now().Add(patience); !strings.Contains(s.command(1, 0, "top", "--json", s.runID).out(), `"want_hosts": 1,`); {
				if time.Now().After(deadline) {
					t.Fatal("the state does not say how many hosts are wanted")
				}
			}
			for i, h := range s.lab.Hosts()[:3] {
				for deadline := time.Now().Add(patience); h.Name != up[0].host; {
					time.Sleep(100 * time.Millisecond)
					out := s.command(i, 0, "ps").out()
					if regexp.MustCompile(` root +1 +0 +waiting `).MatchString(out) {
						break
					} else if time.Now().After(deadline) {
						t.Fatalf("%s, which was in the round before, shows\n%s", h.Name, out)
					}
				}
			}
			s.command(0, 1, "scale", s.runID, "4").says("the job has 1 to 3 hosts (--nnodes), and 4 are asked for")
			if c.holder != nil {
				lost, killed := c.holder(s), time.Now()
				agents[lost].signal(syscall.SIGKILL)
				<-agents[lost].ended
				agents = slices.Delete(agents, lost, lost+1)
				up = s.running(killed, 1)
			}
			for i, h := range s.lab.Hosts() {
				if h.Name == up[0].host {
					s.order(i, 0)
				}
			}
			s.want(0, agents...)
		})
	}
}

// scale has the agent of a host told how many hosts the job shall have.
func (s *site) scale(host, want int) {
	s.t.Helper()
	for said := ""; !strings.Contains(said, "shall have "+itoa(want)+" host"); {
		j := onHost(s.t, s.lab.Host(host), s.wrote, errand{argv: []string{filepath.Join(bin, "muster"), "scale", s.runID, itoa(want)}})
		if status := j.status(); status != 0 && !strings.Contains(j.errs(), "cannot be reached at the moment") && !strings.Contains(j.errs(), "does not answer") {
			s.fatalf("muster scale: %s", j.console())
		}
		said = j.out()
	}
}

// With --live the workers of the hosts that stay go on, in both directions.
func TestScaleLive(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "1:3", "--live --want 3", "live", "gate", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 2}, peer{l: muster(t), addr: "2"}, peer{l: muster(t), addr: "3"})
	first := agents[0]
	scale := func(by *job, hosts string) {
		t.Helper()
		if out, err := exec.Command(filepath.Join(bin, "muster"), "scale", itoa(by.cmd.Process.Pid), hosts).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	all := first.members(4)
	scale(agents[1], "2")
	left := first.members(3)
	gone := slices.DeleteFunc(slices.Clone(all), func(m liveMember) bool {
		return slices.ContainsFunc(left, func(l liveMember) bool { return l.pid == m.pid })
	})
	if len(gone) != 1 || gone[0].rank != 3 {
		t.Errorf("%v leave, want the last rank", gone)
	}
	goesOn(t, all, left, gone[0].pid)
	scale(agents[2], "3") // the spare
	goesOn(t, left, first.members(4))
	scale(agents[2], "1")
	alone := first.members(2)
	goesOn(t, all[:2], alone)
	m.gate.Open()
	wantAll(agents, 0)
}

// With an agent of PyTorch in the job there is no such thing as a wanted size, and it says so.
func TestScaleMixed(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	for name, tt := range map[string]struct {
		peers []peer
		says  string
	}{
		"muster hosts":   {[]peer{{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}}, "an agent of PyTorch takes part in the job"},
		"torchrun hosts": {[]peer{{l: ours, addr: "1"}, {l: theirs, addr: "2", hosts: true}}, "PyTorch holds the rendezvous"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "1:2", "", "report:$WORLD_SIZE", "gate", "exit:0")
			agents := m.startAll(tt.peers...)
			agents[0].await("2", "2")
			out, err := exec.Command(filepath.Join(bin, "muster"), "scale", itoa(agents[0].cmd.Process.Pid), "1").CombinedOutput()
			if err == nil || !strings.Contains(string(out), tt.says) {
				t.Errorf("muster scale: %v: %s", err, out)
			}
			m.gate.Open()
			wantAll(agents, 0)
		})
	}
}

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
