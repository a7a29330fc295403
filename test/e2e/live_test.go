//go:build linux

package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
)

// endMember says for a worker of takePart that the training has ended, if it is a member.
var endMember func()

// failMember says for a member that a collective has failed, with an error of some length.
var failMember func(length string)

// waitsForOthers has a worker of takePart pause at once only, as one does that waits in a
// collective for a peer which is at rest.
var waitsForOthers bool

// takePart is a worker of a live group without PyTorch: it reports and prints each membership, as
// "UUID RANK/WORLD PID STEPS HOST HASH", the last of the handles, and has completed a step more
// at each change.
//
// From the change on that slow says, if it does, it says "asked" and waits for the gate before it
// pauses. size is that of its replica group, if it has one, in which it keeps its place.
func takePart(slow, size string) {
	conn, err := net.Dial("unix", os.Getenv("MUSTER_LIVE_SOCKET"))
	must(err)
	say := func(m map[string]any) {
		line, err := json.Marshal(m)
		must(err)
		_, err = conn.Write(append(line, '\n'))
		must(err)
	}
	endTraining = func() { say(map[string]any{"type": "end"}) }
	handle := func(change int) string { return fmt.Sprintf("%d.%d", os.Getpid(), change) }
	replica, _ := strconv.Atoi(size)
	say(map[string]any{"type": "hello", "version": 1, "id": os.Getenv("MUSTER_LIVE_ID"), "replica_size": replica})
	say(map[string]any{"type": "ready", "change": 0, "handle": handle(0), "step": 0})
	var member atomic.Bool
	var change atomic.Int64
	failMember = func(length string) {
		_, err := fmt.Fprintf(conn, `{"type":"failed","change":%d,"error":"%s"}`+"\n", change.Load(), strings.Repeat("<", number(length)))
		must(err)
	}
	endMember = func() {
		if !member.Load() {
			select {} // the agent ends it
		}
		endTraining()
	}
	over := make(chan struct{})
	awaitOver = func() { <-over }
	go func() {
		var step, lineage, uuid int64
		last := -1
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			var m struct {
				Type          string
				Urgent        bool
				Change        int
				Rank, World   int
				Source        int
				Handles       []string
				Steps         []int64
				Groups        [][]int
				UUID, Lineage int64
			}
			must(json.Unmarshal(lines.Bytes(), &m))
			switch m.Type {
			case "over":
				close(over)
			case "where":
				say(map[string]any{"type": "at", "change": m.Change, "step": step})
			case "change":
				if waitsForOthers && !m.Urgent {
					continue
				}
				if member.Swap(false) { // else it has been at rest since the change before
					step, lineage = step+1, uuid
				}
				if slow != "" && m.Change >= number(slow) {
					testproc.Say("asked")
					testproc.AwaitGate()
				}
				say(map[string]any{"type": "ready", "change": m.Change, "handle": handle(m.Change), "step": step, "lineage": lineage})
			case "members":
				if len(m.Handles) != m.World || len(m.Steps) != m.World || !strings.HasPrefix(m.Handles[m.Rank], strconv.Itoa(os.Getpid())+".") {
					must(fmt.Errorf("%+v is not a membership of %d", m, os.Getpid()))
				}
				for _, group := range m.Groups {
					if place := slices.Index(group, m.Rank); len(group) != replica || place >= 0 && last >= 0 && place != last {
						must(fmt.Errorf("%+v takes %d from place %d", m, os.Getpid(), last))
					} else if place >= 0 {
						last = place
					}
				}
				if len(m.Groups)*replica != m.World && replica > 0 {
					must(fmt.Errorf("%+v are not all in groups of %d", m, replica))
				}
				step, lineage, uuid = m.Steps[max(m.Source, 0)], m.Lineage, m.UUID
				hash := fnv.New32()
				fmt.Fprint(hash, m.Handles)
				line := fmt.Sprintf("%d %d/%d %d %d %s %d", m.UUID, m.Rank, m.World, os.Getpid(), step, cmp.Or(os.Getenv("HOST"), "-"), hash.Sum32())
				fmt.Println(line)
				change.Store(int64(m.Change))
				member.Store(true) // the test may open the gate once it has the line
				testproc.Say(line)
				say(map[string]any{"type": "done", "change": m.Change})
			}
		}
	}()
}

// endTraining says that all steps are completed.
var endTraining func()

// awaitOver waits until the agent of this host says that the training has ended.
var awaitOver func()

// A liveMember is one line of takePart.
type liveMember struct{ uuid, rank, world, pid, step int }

// members waits until all of a membership of a size, and without some, have reported it, and
// returns them by rank. A new worker may be so quick that there was none without it.
func (j *job) members(world int, lost ...int) []liveMember {
	j.t.Helper()
	seen := map[int]map[int]liveMember{}
	for {
		var m liveMember
		if _, err := fmt.Sscanf(j.line(), "%d %d/%d %d %d", &m.uuid, &m.rank, &m.world, &m.pid, &m.step); err != nil {
			j.t.Fatal(err)
		}
		if m.world != world {
			continue
		}
		if seen[m.uuid] == nil {
			seen[m.uuid] = map[int]liveMember{}
		}
		if old, again := seen[m.uuid][m.rank]; again && old.pid != m.pid {
			j.t.Fatalf("%v and %v have one rank", old, m)
		}
		seen[m.uuid][m.rank] = m
		if len(seen[m.uuid]) == world && !slices.ContainsFunc(lost, func(pid int) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(seen[m.uuid])), func(m liveMember) bool { return m.pid == pid })
		}) {
			var all []liveMember
			for rank := range world {
				all = append(all, seen[m.uuid][rank])
			}
			return all
		}
	}
}

// goesOn checks that all of before but the lost are among after, in their order.
func goesOn(t *testing.T, before, after []liveMember, lost ...int) {
	t.Helper()
	var old, now []int
	for _, m := range before {
		if !slices.Contains(lost, m.pid) {
			old = append(old, m.pid)
		}
	}
	for _, m := range after {
		if slices.Contains(old, m.pid) {
			now = append(now, m.pid)
		}
		if m.step != after[0].step {
			t.Errorf("after %v: steps differ", after)
		}
	}
	if !slices.Equal(old, now) {
		t.Errorf("%v go on after %v, want %v", now, before, old)
	}
}

// A worker that waits for one of another host, which is at rest, is told to pause, too,
// before it is taken for lost.
func TestLiveOthersRest(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--live --max-restarts 9 --live-timeout 600", "r0:stuck", "live", "gate", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2", nproc: 2})
	first := agents[0]
	all := first.members(3)
	must(syscall.Kill(all[2].pid, syscall.SIGKILL))
	goesOn(t, all, first.members(3, all[2].pid), all[2].pid)
	m.gate.Open()
	wantAll(agents, 0)
}

// Workers of a live group continue when others are lost, and come back.
func TestLive(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --max-restarts 9", "live", "gate", "exit:0")
	peers := []peer{{l: muster(t), addr: "1", hosts: true, nproc: 2}, {l: muster(t), addr: "2"}, {l: muster(t), addr: "3"}}
	m.conf = together
	agents := m.startAll(peers...)
	first := agents[0]
	all := first.members(4)

	kill := func(pid int) { // a worker
		must(syscall.Kill(pid, syscall.SIGKILL))
		back := first.members(4, pid)
		goesOn(t, all, back, pid)
		all = back
	}
	kill(all[1].pid) // which has a peer on its host
	kill(all[2].pid) // which has none
	kill(all[0].pid)

	lost := all[3].pid
	agents[2].signal(syscall.SIGKILL)
	left := first.members(3, lost)
	goesOn(t, all, left, lost)
	agents[2] = m.start(peers[2])
	goesOn(t, left, first.members(4))
	m.gate.Open()
	wantAll(agents, 0)
	if at := slices.IndexFunc(agents, func(j *job) bool { return strings.Contains(j.errs(), "[M1217]") }); at != 1 {
		t.Errorf("agent %d says that no worker of its host was left", at)
	}
	for _, j := range agents {
		j.saysNot("[M1052]")
	}
}

// A group of one host continues likewise, until its restarts are used up; then without those that
// fail, and the job succeeds with those that are left.
func TestLiveAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := start(t, muster(t), setup{env: []string{"TMPDIR=" + dir}}, "--standalone --nproc-per-node 3 --live --max-restarts 1 --no-python", worker("live", "gate", "exit:0")...)
	all := j.members(3)
	must(syscall.Kill(all[0].pid, syscall.SIGKILL))
	back := j.members(3, all[0].pid)
	goesOn(t, all, back, all[0].pid)
	must(syscall.Kill(back[0].pid, syscall.SIGKILL))
	goesOn(t, back, j.members(2, back[0].pid), back[0].pid)
	j.gate.Open()
	j.want(0).noneLeft(0).says("lost and not replaced", "lost_here=1", "on host ", "[M1216]")
	report, err := os.ReadFile(one(t, dir, "*/*/*/report.json"))
	if err != nil || !strings.Contains(string(report), "SIGKILL") {
		t.Errorf("%v in %s", err, report)
	}
}

// A restart policy decides for a live group, too: whether the others continue, all start again, or
// the job ends. What a rule has caused on one host counts on all.
func TestLivePolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	must(os.WriteFile(file, []byte("rules:\n"+
		"- {name: again, match: {signal: SIGHUP}, action: retry, all: true}\n"+
		"- {name: once, match: {signal: SIGKILL}, action: retry, budget: {restarts: 1}, backoff: {initial: 1h}}\n"), 0o644))
	m := newMixed(t, "2", "--live --max-restarts 9 --restart-policy "+file, "live", "hang")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 2}, peer{l: muster(t), addr: "2", nproc: 2})
	first := agents[0]
	all := first.members(4)
	must(syscall.Kill(all[3].pid, syscall.SIGKILL))
	back := first.members(4, all[3].pid)
	goesOn(t, all, back, all[3].pid)
	pids := []int{back[0].pid, back[1].pid, back[2].pid, back[3].pid}
	must(syscall.Kill(pids[0], syscall.SIGHUP))
	all = first.members(4, pids...)
	must(syscall.Kill(all[0].pid, syscall.SIGKILL))
	wantAll(agents, 1)
	first.says("its budget of 1 restart is used up", "[M1219]")
}

// The last worker of a host is replaced without the back-off for which the others would wait, and
// they continue when the host is drained.
func TestLivePolicyLastOfHost(t *testing.T) {
	t.Parallel()
	policy := policyFile(t, "rules:\n"+
		"- {name: bad-gpu, match: {exit: 66}, action: drain}\n"+
		"- {name: late, match: {signal: SIGKILL}, action: retry, backoff: {initial: 1h}}\n")
	m := newMixed(t, "1:3", "--live --max-restarts 9 --restart-policy "+policy, "live", "gate", "r1:exit:66", "hang")
	m.conf = together
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"}, peer{l: muster(t), addr: "3"})
	first := agents[0]
	all := first.members(3)
	must(syscall.Kill(all[1].pid, syscall.SIGKILL))
	back := first.members(3, all[1].pid)
	goesOn(t, all, back, all[1].pid)
	m.gate.Open()
	goesOn(t, back, first.members(2, back[1].pid), back[1].pid)
	agents[1].want(69).noneLeft(0).says("drained by rule bad-gpu")
	for _, i := range []int{2, 0} { // who holds the rendezvous last
		agents[i].saysNot("[M1062]")
		agents[i].signal(syscall.SIGTERM)
	}
}

// Of a replica group of which one is lost nobody continues, on whatever hosts they are, until it is
// whole again; the other groups do.
func TestLiveReplicas(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "3", "--live --max-restarts 2", "replica:2", "gate", "last", "exit:0")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 3}, peer{l: muster(t), addr: "2"}, peer{l: muster(t), addr: "3", nproc: 2})
	first := agents[0]
	all := first.members(6)
	for _, i := range []int{5, 3} { // which has a peer on its host, and which has none
		must(syscall.Kill(all[i].pid, syscall.SIGKILL))
		back := first.members(6, all[i].pid)
		goesOn(t, all, back, all[i].pid)
		all = back
	}
	must(syscall.Kill(all[1].pid, syscall.SIGKILL)) // no restart is left
	left := first.members(4, all[1].pid)
	if slices.ContainsFunc(left, func(m liveMember) bool { return m.pid == all[0].pid }) {
		t.Errorf("%v go on after %v, with half a replica group", left, all)
	}
	m.gate.Open()
	wantAll(agents, 0)
	first.says(`it="waits for others"`, "lost_here=1", "[M1216]")
}

// A liveStep is a line of examples/train_live.py.
type liveStep struct {
	Step, World, Rank, Place int
	Sum                      float64
	Samples                  []int
}

// liveSteps returns what all ranks have completed, by step and rank.
func liveSteps(t *testing.T, agents ...*job) map[int]map[int]liveStep {
	t.Helper()
	all := map[int]map[int]liveStep{}
	for _, j := range agents {
		for line := range strings.Lines(j.out()) {
			var s liveStep
			if json.Unmarshal([]byte(line), &s) != nil {
				continue // the last of a worker that was killed
			}
			if all[s.Step] == nil {
				all[s.Step] = map[int]liveStep{}
			}
			if _, again := all[s.Step][s.Rank]; again {
				t.Errorf("rank %d completes step %d twice", s.Rank, s.Step)
			}
			all[s.Step][s.Rank] = s
		}
	}
	return all
}

// awaitLive waits until a step that is not below from was completed by a world of a size.
func awaitLive(t *testing.T, world, from int, agents ...*job) (step int) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for step, ranks := range liveSteps(t, agents...) {
			if s, ok := ranks[0]; ok && step >= from && s.World == world {
				return step
			}
		}
	}
	t.Fatalf("no step from %d on of %d ranks\n%s", from, world, agents[0].console())
	return 0
}

// A training on three hosts continues when a worker and then a host are lost, and when they come
// back: all ranks have equal parameters after each step, and no sample is seen twice in an epoch
// or missed.
func TestLiveTrains(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --max-restarts 9")
	m.trains(t, "train_live.py")
	peers := []peer{{l: muster(t), addr: "1", hosts: true}, {l: muster(t), addr: "2"}, {l: muster(t), addr: "3"}}
	agents := m.startAll(peers...)
	step := awaitLive(t, 3, 5, agents...)
	must(syscall.Kill(trainers(agents[1])[0], syscall.SIGKILL))
	step = awaitLive(t, 2, step, agents...)
	step = awaitLive(t, 3, step, agents...)
	agents[2].signal(syscall.SIGKILL)
	step = awaitLive(t, 2, step, agents...)
	agents = append(agents, m.start(peers[2]))
	step = awaitLive(t, 3, step+1, agents...)
	checkLive(t, step, liveSteps(t, agents...))
	for _, i := range []int{3, 1, 0} { // who holds the rendezvous last
		agents[i].signal(syscall.SIGTERM)
	}
	t.Logf("%d steps", step)
}

// With a state that is sharded over the two ranks of each host, a training loses one rank, and so
// one copy of the state, and gets it back. In `make test` that is the first copy: TestLiveReplicasCompleteStep loses
// the other one.
func TestLiveReplicasTrain(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--live --max-restarts 9")
	m.trains(t, "train_live_hsdp.py")
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 2}, peer{l: muster(t), addr: "2", nproc: 2})
	step := awaitLive(t, 4, 5, agents...)
	hosts := []int{1, 0}
	if os.Getenv("MUSTER_E2E_LONG") == "" {
		hosts = hosts[1:]
	}
	for _, host := range hosts {
		must(syscall.Kill(trainers(agents[host])[1], syscall.SIGKILL))
		step = awaitLive(t, 2, step, agents...)
		step = awaitLive(t, 4, step+1, agents...)
	}
	checkLive(t, step, liveSteps(t, agents...))
	for _, j := range slices.Backward(agents) {
		j.signal(syscall.SIGTERM)
	}
	t.Logf("%d steps", step)
}

// A rank that is in the barrier before the optimizer, when those with the other shards have left
// it and the only one with the same shards is lost, completes the step.
func TestLiveReplicasCompleteStep(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2", "--live --max-restarts 9")
	m.trains(t, "train_live_hsdp.py")
	m.program = slices.Concat([]string{"testdata/live_barrier.py", m.program[0], filepath.Join(t.TempDir(), "mark")}, m.program[1:])
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true, nproc: 2}, peer{l: muster(t), addr: "2", nproc: 2})
	step := awaitLive(t, 4, awaitLive(t, 2, 8, agents...), agents...)
	all := liveSteps(t, agents...)
	checkLive(t, step, all)
	if len(all[7]) != 3 || all[7][1].World != 4 {
		t.Errorf("the step in which rank 3 was lost: %+v", all[7])
	}
	for _, j := range slices.Backward(agents) { // who holds the rendezvous last
		j.saysNot("[M1196]")
		j.signal(syscall.SIGTERM)
	}
}

// A host whose agent was stopped, so that the others continued without it, comes back with a worker that
// has completed just as many steps as theirs: the last of them with other ranks than theirs, which have
// repeated it. It takes their state.
func TestLiveComesBackAtEqualStep(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "2:3", "--live --max-restarts 9")
	m.conf = together
	m.trains(t, "train_live.py")
	m.program = slices.Concat([]string{"testdata/live_lineage.py"}, m.program, []string{"--keep", "local"})
	var peers []peer
	for i, name := range []string{"a", "b", "c"} {
		peers = append(peers, peer{l: muster(t), addr: strconv.Itoa(i + 1), hosts: i == 1, env: []string{"AGENT=" + name}})
	}
	agents := m.startAll(peers...)
	first, sums := agents[0], map[string]map[int]float64{"a": {}, "b": {}, "c": {}}
	await := func(step int, of ...string) {
		t.Helper()
		for slices.ContainsFunc(of, func(name string) bool { _, known := sums[name][step]; return !known }) {
			var name string
			var completed int
			var sum float64
			_, err := fmt.Sscan(first.line(), &name, &completed, &sum)
			must(err)
			sums[name][completed] = sum
		}
	}
	await(5, "b", "c") // a collective of the sixth step fails
	await(6, "a")
	first.signal(syscall.SIGSTOP)
	m.gate.Open()
	await(6, "b", "c")
	first.signal(syscall.SIGCONT)
	await(8, "a", "b", "c")
	if sums["a"][6] == sums["b"][6] {
		t.Errorf("the step is the same where it was repeated: %v", sums)
	}
	for _, step := range []int{7, 8} {
		if a, b, c := sums["a"][step], sums["b"][step], sums["c"][step]; a != b || b != c {
			t.Errorf("after %d steps the ranks have different states: %v", step, sums)
		}
	}
	agents[1].says("live: the workers resume", "joined=1")
	for _, i := range []int{0, 2, 1} { // who holds the rendezvous last
		agents[i].signal(syscall.SIGTERM)
	}
}

// trains makes one of the examples the program. Forks would be there before the others have made a step without them.
func (m *mixedJob) trains(t *testing.T, example string) {
	python, err := filepath.Abs("../../python")
	must(err)
	m.program = []string{"../../examples/" + example, "--steps", "1000000", "--samples", "960", "--pause", "0.05"}
	m.env = withPython(t, testproc.Unpaused, "PYTHONPATH="+python).env
}

// trainers are the workers of an agent.
func trainers(j *job) (pids []int) {
	running, err := procfs.All()
	must(err)
	for _, p := range running {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); p.Parent == j.cmd.Process.Pid && strings.Contains(string(name), "train_live") {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// checkLive checks the steps before step: ranks with the same state have equal sums, and no sample
// is seen twice in an epoch or missed.
func checkLive(t *testing.T, step int, all map[int]map[int]liveStep) {
	t.Helper()
	const perEpoch = 20
	seen, torn := map[int]int{}, false // torn: a rank was killed after a step, and before it printed that
	for i := range step {
		torn = torn || len(all[i]) != all[i][0].World
		sums := map[int]float64{}
		for rank, s := range all[i] {
			if sum, ok := sums[s.Place]; ok && s.Sum != sum {
				t.Errorf("after step %d rank %d has the sum %v, another one %v", i, rank, s.Sum, sum)
			}
			sums[s.Place] = s.Sum
			for _, sample := range s.Samples {
				seen[sample]++
			}
		}
		if (i+1)%perEpoch != 0 {
			continue
		}
		for sample := range 960 {
			if n := seen[sample]; n != 1 && !torn {
				t.Errorf("sample %d was seen %d times in epoch %d", sample, n, i/perEpoch)
				break
			}
		}
		clear(seen)
		torn = false
	}
}

// A spare host takes the place of one that is lost, and its worker joins those that continue.
func TestLiveSpare(t *testing.T) {
	t.Parallel()
	m := newMixed(t, "1:2", "--live --max-restarts 9", "live", "gate", "exit:0")
	m.conf = together
	agents := m.startAll(peer{l: muster(t), addr: "1", hosts: true}, peer{l: muster(t), addr: "2"})
	first := agents[0]
	all := first.members(2)
	spare := m.start(peer{l: muster(t), addr: "3"})
	spare.awaitErrs("waiting for hosts", 1)
	agents[1].signal(syscall.SIGKILL)
	goesOn(t, all, first.members(2, all[1].pid), all[1].pid)
	m.gate.Open()
	wantAll([]*job{first, spare}, 0)
}
