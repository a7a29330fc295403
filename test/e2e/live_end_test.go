//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
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
		j.want(0).noneLeft(0).says("stopping it local_rank=1 it=\"is starting\"").saysNot("[M1216]")
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

// A host that joins as the training ends comes too late: its workers are stopped, and nobody begins again.
func TestLiveJoinsAtTheEnd(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --live-timeout 600 --max-restarts 0", "r2:report:late", "r2:hang", "stuck", "live", "gate", "end", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	agents[0].members(2)
	agents = append(agents, m.start(peer{l: muster(t), addr: "3"}))
	for agents[0].line() != "late" {
	}
	m.gate.Open()
	wantAll(agents, 0)
	agents[2].noneLeft(0).says("[M1209]")
}

// A worker that ends before it has taken part, and is not replaced, is not waited for.
func TestLiveFailsAsItStarts(t *testing.T) {
	t.Parallel()
	dir, end := heldBack(t)
	j := start(t, muster(t), setup{env: []string{"LOGLEVEL=INFO"}}, "--standalone --nproc-per-node 2 --live --max-restarts 2 --no-python",
		worker("a1:report:one", "a1:after:"+dir+" cat", "a1:exit:1", "a2:report:two", "a2:gate", "live", "hang")...)
	all := j.members(2)
	for i, want := range []string{"one", "two"} {
		must(syscall.Kill(all[i].pid, syscall.SIGKILL))
		for j.line() != want {
		}
	}
	end()
	j.awaitErrs("rendezvous complete", 4)
	j.gate.Open()
	j.members(1, all[0].pid, all[1].pid)
	j.signal(syscall.SIGTERM)
}

// heldBack starts a process, cat, for whose end workers can wait, and returns the directory that
// names it, and what ends it.
func heldBack(t *testing.T) (dir string, end func()) {
	t.Helper()
	held := exec.Command("cat")
	in, err := held.StdinPipe()
	must(errors.Join(err, held.Start()))
	dir = t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "cat"), []byte(strconv.Itoa(held.Process.Pid)), 0o666))
	return dir, func() { must(errors.Join(in.Close(), held.Wait())) }
}

// A worker that is ready to join does so with all that are there, or not: a loss while the members
// pause for it does not leave it alone.
func TestLiveJoinsNoneButAll(t *testing.T) {
	t.Parallel()
	dir, end := heldBack(t) // new workers wait for its end
	j := start(t, muster(t), setup{env: []string{"LOGLEVEL=INFO"}}, "--standalone --nproc-per-node 3 --live --max-restarts 2 --no-python", worker("a1:after:"+dir+" cat", "live:3", "hang")...)
	all := j.members(3)
	must(syscall.Kill(all[2].pid, syscall.SIGKILL))
	j.members(2) // change 2; that for the new worker is 3
	end()
	for asked := 0; asked < 2; { // to rest for the new worker
		if j.line() == "asked" {
			asked++
		}
	}
	j.awaitErrs("rendezvous complete", 3)
	must(syscall.Kill(all[1].pid, syscall.SIGKILL))
	j.awaitErrs("live: the workers pause", 3)
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

// The error of a collective reaches the other hosts, however long it is.
func TestLiveLongError(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--live", "live", "gate", "r1:fail:60000", "hang")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	before := agents[0].members(2)
	m.gate.Open()
	goesOn(t, before, agents[0].members(2))
	for _, j := range slices.Backward(agents) {
		j.saysNot("[M1069]")
		j.signal(syscall.SIGTERM)
	}
}

// Where no live change can be made after a loss, all start again, for which one restart is counted.
// The failure is that of the worker that was lost; those that muster has ended follow from it.
func TestLiveCannotGoOn(t *testing.T) {
	t.Parallel()
	lose := func(t *testing.T, first *job, rank, world int) {
		t.Helper()
		all := first.members(world)
		must(syscall.Kill(all[rank].pid, syscall.SIGKILL))
		var gone []int
		for _, m := range all {
			gone = append(gone, m.pid)
		}
		must(syscall.Kill(first.members(world, gone...)[rank].pid, syscall.SIGKILL))
	}
	want := func(j *job, rank int) {
		j.want(1).noneLeft(0).says(fmt.Sprintf("muster: rank %d ", rank), "(after 1 of 1 restarts): killed by SIGKILL",
			"stopped with SIGKILL; no live change: no worker that is left has").saysNot("missed a deadline")
	}
	t.Run("one host", func(t *testing.T) {
		t.Parallel()
		j := start(t, muster(t), setup{}, "--standalone --nproc-per-node 3 --live --max-restarts 1 --no-python", worker("replica:2", "hang")...)
		lose(t, j, 0, 2) // the third, which waits, has no shard
		want(j, 0)
	})
	t.Run("two hosts", func(t *testing.T) {
		t.Parallel()
		m := newMixed(t, "2", "--live --max-restarts 1", "replica:2", "hang")
		agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2", nproc: 2})
		lose(t, agents[0], 1, 2)
		for _, j := range agents {
			want(j, 1)
		}
	})
}

// A worker that does not pause is killed, and the report says what it did instead.
func TestLiveLate(t *testing.T) {
	t.Parallel()
	j := start(t, muster(t), setup{}, "--standalone --nproc-per-node 3 --live --live-timeout 2 --max-restarts 0 --no-python", worker("r0:live", "r1:live:2", "r2:live", "hang")...)
	all := j.members(3)
	must(syscall.Kill(all[2].pid, syscall.SIGKILL))
	for line := ""; line != "asked"; line = j.line() {
	}
	goesOn(t, all[:1], j.members(1))
	j.says("local_rank=1 it=\"does not pause\"", "evidence=/")
	must(syscall.Kill(all[0].pid, syscall.SIGKILL))
	j.want(1).noneLeft(0).says("live change: it does not pause within 2s: rank 1 ")
}

// A host that is lost when the training has ended is not needed any more: those whose workers have
// ended do not begin again.
func TestLiveHostLostAfterTheEnd(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --max-restarts 9", "live", "gate", "r0:end", "r2:hang", "over", "report:ends", "exit:0")
	m.conf = together
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"}, peer{l: muster(t), addr: "3"})
	all := agents[0].members(3)
	m.gate.Open()
	for range 2 {
		if line := agents[0].line(); line != "ends" {
			t.Fatalf("%q", line)
		}
	}
	testproc.AwaitEnd(all[0].pid, patience)
	testproc.AwaitEnd(all[1].pid, patience)
	agents[2].signal(syscall.SIGKILL)
	wantAll(agents[:2], 0)
	for _, j := range agents[:2] {
		j.saysNot("[M1057]")
	}
}
