//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
)

// A mixed job is one whose agents are muster's and torchrun's, in one rendezvous.
// Its hosts are loopback addresses: an agent's address decides its rank, as the
// spec has it, so that either side can have rank 0.

// A peer is one agent of a mixed job.
type peer struct {
	l     launcher
	addr  string // last part of its loopback address, the smallest is rank 0; or its --node-rank
	hosts bool   // it holds the rendezvous
	nproc int    // default 1
	flags string // added to the job's
	env   []string
	steps []string // of its workers, in place of the job's
	errs  *os.File // its stderr, if the test reads it
}

// A mixedJob is what its agents have in common.
type mixedJob struct {
	t    testing.TB
	port int
	nnodes,
	flags string
	conf   string   // added to --rdzv-conf
	steps  []string // of the workers
	static bool     // the nodes have fixed ranks
	// program is run by the workers instead.
	program []string
	board   *board
	gate    *testproc.Gate
	env     []string
}

// newMixed returns a job whose agents meet at a free port. Its workers share one
// board and one gate.
func newMixed(t testing.TB, nnodes, flags string, steps ...string) *mixedJob {
	t.Helper()
	return &mixedJob{t: t, port: freePort(t), nnodes: nnodes, flags: flags, steps: steps, board: newBoard(t), gate: testproc.NewGate(t)}
}

// together makes a round wait for all the hosts that it may have, or had before, however busy the
// machine is: they have their ranks in the order of their addresses.
const together = "last_call_timeout=60"

// quick are timeouts that make a test quick and still have room on a busy machine.
const quick = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8,join_timeout=600,read_timeout=600"

// awaitServer waits until the job's port is served.
func (m *mixedJob) awaitServer(host *job) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.port))
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-host.ended:
			m.t.Fatalf("%s ended\n%s", host.l.name, host.console())
		case <-time.After(10 * time.Millisecond):
		}
	}
	m.t.Fatalf("nobody serves port %d", m.port)
}

// start starts one agent.
func (m *mixedJob) start(p peer) *job {
	m.t.Helper()
	flags := fmt.Sprintf("--nnodes %s --nproc-per-node %d --rdzv-id mixed ", m.nnodes, max(p.nproc, 1))
	if m.static {
		flags += fmt.Sprintf("--master-addr 127.0.0.1 --master-port %d --node-rank %s ", m.port, p.addr)
	} else {
		flags += fmt.Sprintf("--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:%d --local-addr 127.0.0.%s --rdzv-conf %s,is_host=%v", m.port, p.addr, quick, p.hosts)
		if m.conf != "" {
			flags += "," + m.conf
		}
	}
	flags += " " + m.flags + " " + p.flags
	program := m.program
	if program == nil {
		flags += " --no-python"
		program = worker(m.steps...)
		if p.steps != nil {
			program = worker(p.steps...)
		}
	}
	s := setup{forked: true, stderr: p.errs, env: slices.Concat(m.env, testproc.Env(m.board.Board, m.gate, ""), p.env)}
	j := start(m.t, p.l, s, flags, program...)
	j.l.name = fmt.Sprintf("%s at %s", p.l.name, p.addr)
	j.board, j.gate = m.board, m.gate
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("%s:\n%s", j.l.name, j.console())
		}
	})
	return j
}

// startAll starts agents in this order.
func (m *mixedJob) startAll(peers ...peer) []*job {
	m.t.Helper()
	all := make([]*job, len(peers))
	for i, p := range peers {
		all[i] = m.start(p)
	}
	return all
}

// wantAll checks that all agents end with a status.
func wantAll(agents []*job, status int) {
	for _, j := range agents {
		j.t.Helper()
		if got := j.status(); got != status {
			var all strings.Builder
			for _, j := range agents {
				all.WriteString(j.console() + "\n")
			}
			j.t.Fatalf("%s ended with status %d, want %d\n%s", j.l.name, got, status, &all)
		}
	}
}

var lastPort atomic.Int64

func init() { lastPort.Store(int64(10_000 + rand.IntN(15_000))) }

// freePort returns a port that nobody has, nor the one after it, which a member of a
// quorum takes for the other members. The kernel gives neither to who asks for any.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := int(lastPort.Add(2))
		if isFree(port) && isFree(port+1) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// dumps reads what the workers of a job have said of themselves, by rank.
func dumps(t testing.TB, dir string, n int) []description {
	t.Helper()
	all := make([]description, n)
	for rank := range all {
		b, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)+".json"))
		if err == nil {
			err = json.Unmarshal(b, &all[rank])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// sizes are the local world sizes of a job's agents in order of their rank.
func sizes(peers []peer) []int {
	sorted := slices.SortedStableFunc(slices.Values(peers), func(a, b peer) int { return strings.Compare(a.addr, b.addr) })
	var all []int
	for _, p := range sorted {
		all = append(all, max(p.nproc, 1))
	}
	return all
}

// agree checks that the workers of a round have contiguous ranks in order of their
// agents' addresses, and meet at one place.
func agree(t testing.TB, workers []description, nprocs []int) {
	t.Helper()
	rank := 0
	for group, nproc := range nprocs {
		for local := range nproc {
			got := map[string]string{}
			want := map[string]string{
				"RANK": itoa(rank), "LOCAL_RANK": itoa(local), "GROUP_RANK": itoa(group), "ROLE_RANK": itoa(rank),
				"WORLD_SIZE": itoa(len(workers)), "ROLE_WORLD_SIZE": itoa(len(workers)), "LOCAL_WORLD_SIZE": itoa(nproc),
				"GROUP_WORLD_SIZE": itoa(len(nprocs)), "TORCHELASTIC_RUN_ID": "mixed", "TORCHELASTIC_USE_AGENT_STORE": "True",
				"MASTER_ADDR": workers[0].Env["MASTER_ADDR"], "MASTER_PORT": workers[0].Env["MASTER_PORT"],
			}
			for name := range want {
				got[name] = workers[rank].Env[name]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rank %d (-want +got)\n%s", rank, diff)
			}
			rank++
		}
	}
	if port, err := strconv.Atoi(workers[0].Env["MASTER_PORT"]); err != nil || port < 1 {
		t.Errorf("MASTER_PORT is %q", workers[0].Env["MASTER_PORT"])
	}
}

// Muster and torchrun agents meet, whoever holds the rendezvous and whoever has
// rank 0, and give their workers what fits together.
func TestMixedMeets(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	tests := map[string]struct {
		peers  []peer
		static bool
		store  bool // a `muster store` holds the rendezvous
	}{
		"muster hosts and leads": {peers: []peer{{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2", nproc: 2}}},
		"muster hosts, torchrun leads": {peers: []peer{
			{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "1", nproc: 2}, {l: ours, addr: "3"}}},
		"torchrun hosts and leads": {peers: []peer{
			{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2", nproc: 2}, {l: ours, addr: "3"}}},
		"torchrun hosts, muster leads": {peers: []peer{{l: theirs, addr: "2", hosts: true}, {l: ours, addr: "1", nproc: 3}}},
		"muster hosts two of torchrun": {peers: []peer{
			{l: ours, addr: "2", hosts: true, nproc: 2}, {l: theirs, addr: "1"}, {l: theirs, addr: "3"}}},
		"muster store hosts":     {store: true, peers: []peer{{l: theirs, addr: "2"}, {l: ours, addr: "1", nproc: 2}}},
		"static, muster leads":   {static: true, peers: []peer{{l: ours, addr: "0", nproc: 2}, {l: theirs, addr: "1"}}},
		"static, torchrun leads": {static: true, peers: []peer{{l: theirs, addr: "0", nproc: 2}, {l: ours, addr: "1"}}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := tests[name]
			dir := t.TempDir()
			m := newMixed(t, itoa(len(tt.peers)), "", "dump:"+dir, "exit:0")
			m.static = tt.static
			if tt.store {
				m.startStore()
			}
			wantAll(m.startAll(tt.peers...), 0)
			nprocs := sizes(tt.peers)
			n := 0
			for _, nproc := range nprocs {
				n += nproc
			}
			workers := dumps(t, dir, n)
			agree(t, workers, nprocs)
			if got := workers[0].Env["MASTER_ADDR"]; got != "127.0.0.1" {
				t.Errorf("MASTER_ADDR is %q, want the address of rank 0", got)
			}
		})
	}
}

// startStore starts a `muster store` at the job's endpoint.
func (m *mixedJob) startStore() {
	m.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	store := start(m.t, launcher{"muster store", []string{filepath.Join(bin, "muster"), "store"}},
		setup{stdout: w}, "--host 127.0.0.1 --port "+itoa(m.port))
	w.Close()
	defer r.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		m.t.Fatalf("muster store: %q, %v\n%s", line, err, store.console())
	}
}

// Agents of both kinds train one model, with the same losses whoever leads.
func TestMixedTrains(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	tests := map[string][]peer{
		"muster hosts and leads":   {{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}},
		"torchrun hosts and leads": {{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2"}},
	}
	losses := make(chan []string, len(tests))
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		if diff := cmp.Diff(<-losses, <-losses); diff != "" {
			t.Errorf("losses depend on who leads:\n%s", diff)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "2", "")
			m.env = withForks(t).env
			m.program = []string{"testdata/train.py", "--epochs", "2"}
			agents := m.startAll(tests[name]...)
			wantAll(agents, 0)
			out := agents[0].out() + agents[1].out()
			for _, line := range []string{"rank 0 of 2", "rank 1 of 2"} {
				if !strings.Contains(out, line) {
					t.Errorf("no %q in\n%s", line, out)
				}
			}
			epochs := grep(agents[0].out(), "^epoch")
			if len(epochs) != 2 {
				t.Errorf("rank 0 printed %q", agents[0].out())
			}
			losses <- epochs
		})
	}
}

// onceFails is a worker whose rank 1 fails the first time, while rank 0 is in a
// collective operation with it.
const onceFails = `
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(1)
dist.all_reduce(t)
if rank == 1 and not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    os._exit(3)
dist.all_reduce(t)
print(f"rank {rank}: {int(t.item())}", flush=True)
dist.destroy_process_group()
`

// After a failure the workers meet again at the second attempt, which with
// torchrun as rank 0 needs a store that it would not empty.
func TestMixedTrainsAgain(t *testing.T) {
	t.Parallel()
	ours, theirs := muster(t), torchrun(t)
	tests := map[string][]peer{
		"muster hosts and leads":       {{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2"}},
		"muster hosts, torchrun leads": {{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "1"}},
		"torchrun hosts and leads":     {{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2"}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, "2", "--max-restarts 1")
			m.env = withForks(t).env
			m.program = []string{script(t, "once_fails.py", onceFails), filepath.Join(t.TempDir(), "failed")}
			agents := m.startAll(tests[name]...)
			wantAll(agents, 0)
			if out := agents[0].out() + agents[1].out(); !strings.Contains(out, "rank 0: 4") || !strings.Contains(out, "rank 1: 4") {
				t.Errorf("workers printed %q", out)
			}
		})
	}
}
