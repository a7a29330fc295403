//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// A training that ends while a worker starts in place of one that was lost has ended: the new one
// is stopped, and does not begin again alone, on one host and on two.
func TestLiveEnds(t *testing.T) {
	t.Parallel()
	steps := []string{"a0:live", "a1:report:late", "a1:hang", "gate", "end", "exit:0"}
	lose := func(t *testing.T, j *job) {
		t.Helper()
		all := j.members(2)
		must(syscall.Kill(all[1].pid, syscall.SIGKILL))
		for alone, late := false, false; !alone || !late; {
			line := j.line()
			alone, late = alone || strings.Contains(line, fmt.Sprintf(" 0/1 %d ", all[0].pid)), late || line == "late"
		}
	}
	t.Run("one host", func(t *testing.T) {
		t.Parallel()
		j := start(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --live --max-restarts 1 --no-python", worker(steps...)...)
		lose(t, j)
		j.gate.Open()
		j.want(0).noneLeft(0).says("the training has ended while a worker was starting")
	})
	t.Run("two hosts", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "2:2", "--live --max-restarts 1", steps...)
		agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
		lose(t, agents[0])
		m.gate.Open()
		wantAll(agents, 0)
	})
}

// A worker that is ready to join does so with all that are there, or not: a loss while the members
// come to rest for it does not leave it alone.
func TestLiveJoinsNoneButAll(t *testing.T) {
	t.Parallel()
	j := start(t, muster(t), setup{env: []string{"LOGLEVEL=INFO"}}, "--standalone --nproc-per-node 3 --live --max-restarts 2 --no-python", worker("live:3", "hang")...)
	all := j.members(3)
	must(syscall.Kill(all[2].pid, syscall.SIGKILL))
	for asked := 0; asked < 2; { // to rest for the new worker
		if j.line() == "asked" {
			asked++
		}
	}
	j.awaitErrs("rendezvous complete", 3)
	must(syscall.Kill(all[1].pid, syscall.SIGKILL))
	j.awaitErrs("live: the workers come to rest", 3)
	j.gate.Open()
	for whole := map[int]int{}; len(whole) < 3; {
		var m liveMember
		if _, err := fmt.Sscanf(j.line(), "%d %d/%d %d %d", &m.uuid, &m.rank, &m.world, &m.pid, &m.step); err != nil {
			continue
		}
		if m.rank == 0 && m.pid != all[0].pid {
			t.Fatalf("%+v is the first, not %d\n%s", m, all[0].pid, j.console())
		}
		if m.world == 3 && m.pid != all[1].pid && m.pid != all[2].pid {
			whole[m.pid] = m.rank
		}
	}
	j.signal(syscall.SIGTERM)
}
