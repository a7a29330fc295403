//go:build linux

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A drilled is what `muster chaos --json` prints of a drill, or in the end of all.
type drilled struct {
	What, Outcome, How, Problem string
	Victim                      struct {
		Rank      int
		GroupRank int `json:"group_rank"`
	}
	Noticed, Running, Whole float64
	Ranks                   int
	RanksBefore             int `json:"ranks_before"`
	Restarts                int
	Summary                 struct{ Drills int }
}

// chaos runs drills on the job of an agent.
func chaos(t *testing.T, j *job, flags string) (all []drilled) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "muster"), append([]string{"chaos", itoa(j.cmd.Process.Pid), "--json"}, strings.Fields(flags)...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("muster chaos %s: %v\n%s%s", flags, err, errs.String(), out)
	for line := range strings.Lines(string(out)) {
		var d drilled
		must(json.Unmarshal([]byte(strings.ReplaceAll(line, "_seconds", "")), &d))
		all = append(all, d)
	}
	if n := len(all) - 1; n < 1 || all[n].Summary.Drills != n {
		t.Fatalf("%d lines", len(all))
	}
	return all[:len(all)-1]
}

// Drills do to a job what rows of docs/reliability.md do, and see the same follow: worker failure,
// host cut off, agent killed, host leaves cleanly.
func TestChaos(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "1:3", "--max-restarts 3", "ready", "gate", "exit:0")
	m.conf, m.env = together, []string{testproc.Unpaused} // drills stop processes themselves
	peers := []peer{{l: muster(t), addr: "1", hosts: true}, {l: muster(t), addr: "2"}, {l: muster(t), addr: "3"}}
	agents := m.startAll(peers...)
	agents[0].await("ready 2")
	three := chaos(t, agents[0], "--kill-rank 2 --cut-host 1 --cut-time 15s --limit 60s")
	if d := three[0]; d.Outcome != "recovered" || d.How != "restart" || d.Restarts != 1 || d.Ranks != 3 || d.Victim.Rank != 2 || d.Noticed <= 0 || d.Whole < d.Noticed {
		t.Errorf("a killed rank: %+v", d)
	}
	// The keep-alive limit of these jobs is 8 s.
	if d := three[1]; d.Outcome != "recovered" || d.How != "new round" || d.Restarts != 0 || d.Ranks != 2 || d.Noticed < 4 || d.Running > 15 || d.Whole < 15 {
		t.Errorf("a host that is cut off: %+v", d)
	}
	agents[1].says("this agent is about to fail, since a drill asks for it")
	agents[0].says("node has not been heard of")

	// A worker that was stopped continues, also if the drill is broken off.
	var pid int
	drill := exec.Command(filepath.Join(bin, "muster"), "chaos", itoa(agents[0].cmd.Process.Pid), "--stop-rank=0")
	head, err := drill.StdoutPipe()
	must(err)
	must(drill.Start())
	_, err = head.Read(make([]byte, 1)) // its first line: it minds signals
	must(err)
	for deadline := time.Now().Add(patience); pid == 0 && time.Now().Before(deadline); {
		running, err := procfs.All()
		must(err)
		for _, p := range running {
			if p.Parent == agents[0].cmd.Process.Pid && p.State == 'T' {
				pid = p.PID
			}
		}
	}
	must(drill.Process.Signal(syscall.SIGINT))
	if err := drill.Wait(); err != nil {
		t.Fatal(err)
	}
	p, err := procfs.Read(pid)
	for deadline := time.Now().Add(patience); err == nil && p.State == 'T' && time.Now().Before(deadline); {
		p, err = procfs.Read(pid)
	}
	if err != nil || p.State == 'T' {
		t.Errorf("the worker after a drill that was broken off: %+v, %v", p, err)
	}

	less := chaos(t, agents[0], "--kill-agent 1 --stop-agent 1 --limit 5s")
	for i, d := range less {
		if d.Outcome != "smaller" || d.How != "new round" || d.Restarts != 0 || d.Ranks != 2-i || d.RanksBefore != 3-i || d.Whole != 0 {
			t.Errorf("an agent that ends: %+v", d)
		}
	}
	var ends []int
	for _, j := range agents[1:] {
		ends = append(ends, j.status())
	}
	if (ends[0] == -int(syscall.SIGKILL)) == (ends[1] == -int(syscall.SIGKILL)) {
		t.Errorf("statuses %v, want one agent killed and one stopped", ends)
	}
	none := chaos(t, agents[0], "--kill-agent")
	if !strings.Contains(none[0].Problem, "run this on another host") {
		t.Errorf("one agent is left: %+v", none[0])
	}
	m.gate.Open()
	agents[0].want(0)
}

// A live group changes in a drill, and no worker that is left starts again.
func TestChaosLive(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --max-restarts 9", "live", "gate", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 2}, peer{l: muster(t), addr: "2"}, peer{l: muster(t), addr: "3"})
	all := agents[0].members(4)
	for _, d := range chaos(t, agents[0], "--kill-rank 0 --kill-rank 2 --kill-rank 3") {
		if d.Outcome != "recovered" || d.How != "live change" || d.Restarts != 1 || d.RanksBefore != 4 || d.Ranks < 3 {
			t.Errorf("%+v", d)
		}
	}
	must(syscall.Kill(all[1].pid, 0))
	m.gate.Open()
	wantAll(agents, 0)
}
