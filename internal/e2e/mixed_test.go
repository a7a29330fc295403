//go:build linux

package e2e

import (
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

	"github.com/google/go-cmp/cmp"
)

// A mixed job is one whose agents are muster's and torchrun's, in one rendezvous.
// Its hosts are loopback addresses: an agent's address decides its rank, as the
// spec has it, so that either side can have rank 0.

// A peer is one agent of a mixed job.
type peer struct {
	l     launcher
	addr  string // last part of its loopback address; the smallest is rank 0
	hosts bool   // it holds the rendezvous
	nproc int    // default 1
	flags string // added to the job's
	env   []string
	steps []string // of its workers, in place of the job's
}

// A mixedJob is what its agents have in common.
type mixedJob struct {
	t    testing.TB
	port int
	nnodes,
	flags string
	conf  string   // added to --rdzv-conf
	steps []string // of the workers
	// program is run by the workers instead.
	program []string
	board   *board
	gate    *gate
	env     []string
}

// newMixed returns a job whose agents meet at a free port. Its workers share one
// board and one gate.
func newMixed(t testing.TB, nnodes, flags string, steps ...string) *mixedJob {
	t.Helper()
	return &mixedJob{t: t, port: freePort(t), nnodes: nnodes, flags: flags, steps: steps, board: newBoard(t), gate: newGate(t)}
}

// quick are timeouts that make a test quick and still have room on a busy machine.
const quick = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8,join_timeout=60"

// start starts one agent.
func (m *mixedJob) start(p peer) *job {
	m.t.Helper()
	endpoint := fmt.Sprintf("127.0.0.1:%d", m.port)
	nproc := max(p.nproc, 1)
	conf := fmt.Sprintf("%s,is_host=%v", quick, p.hosts)
	if m.conf != "" {
		conf += "," + m.conf
	}
	flags := fmt.Sprintf("--nnodes %s --nproc-per-node %d --rdzv-backend c10d --rdzv-endpoint %s --rdzv-id mixed --rdzv-conf %s --local-addr 127.0.0.%s %s %s",
		m.nnodes, nproc, endpoint, conf, p.addr, m.flags, p.flags)
	program := m.program
	if program == nil {
		flags += " --no-python"
		program = worker(m.steps...)
		if p.steps != nil {
			program = worker(p.steps...)
		}
	}
	s := setup{env: slices.Concat([]string{envBoard + "=" + m.board.path, envGate + "=" + m.gate.path}, m.env, p.env)}
	j := start(m.t, p.l, s, flags, program...)
	j.l.name = fmt.Sprintf("%s at %s", p.l.name, p.addr)
	j.board, j.gate = m.board, m.gate
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
			for _, other := range agents {
				other.t.Logf("%s:\n%s", other.l.name, other.console())
			}
			j.t.Fatalf("%s ended with status %d, want %d", j.l.name, got, status)
		}
	}
}

var lastPort atomic.Int64

func init() { lastPort.Store(int64(10_000 + rand.IntN(15_000))) }

// freePort returns a port that nobody has, and that the kernel gives to nobody who
// asks for any.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := int(lastPort.Add(1))
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
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
	tests := map[string][]peer{
		"muster hosts and leads": {{l: ours, addr: "1", hosts: true}, {l: theirs, addr: "2", nproc: 2}},
		"muster hosts, torchrun leads": {
			{l: ours, addr: "2", hosts: true}, {l: theirs, addr: "1", nproc: 2}, {l: ours, addr: "3"}},
		"torchrun hosts and leads": {
			{l: theirs, addr: "1", hosts: true}, {l: ours, addr: "2", nproc: 2}, {l: ours, addr: "3"}},
		"torchrun hosts, muster leads": {{l: theirs, addr: "2", hosts: true}, {l: ours, addr: "1", nproc: 3}},
		"muster hosts two of torchrun": {
			{l: ours, addr: "2", hosts: true, nproc: 2}, {l: theirs, addr: "1"}, {l: theirs, addr: "3"}},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peers := tests[name]
			dir := t.TempDir()
			m := newMixed(t, itoa(len(peers)), "", "dump "+dir, "exit 0")
			wantAll(m.startAll(peers...), 0)
			nprocs := sizes(peers)
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
