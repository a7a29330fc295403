//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

// sequences is which random sequences a test plays on each backend: n, or as many as MUSTER_SEQUENCES
// says (340 make a thousand), from MUSTER_SEQUENCE on, which test.sh sets by the commit and a person to
// replay one. MUSTER_SEQUENCES_TOGETHER (1) of them follow each other in one job, which costs fewer
// imports of PyTorch.
func sequences(n int) (from, to, together uint64) {
	number := func(name string, n int) uint64 {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 32)
			must(err)
			return n
		}
		return uint64(n)
	}
	from = number("MUSTER_SEQUENCE", 0)
	return from, from + number("MUSTER_SEQUENCES", n), max(1, number("MUSTER_SEQUENCES_TOGETHER", 1))
}

// liveBackends are those whose job outlives the loss of any host.
var liveBackends = []string{"c10d, muster store", "etcd", "quorum"}

// eachSequence plays sequences on each of some backends, some at once.
func eachSequence(t *testing.T, n int, backends []string, play func(t *testing.T, c *hostsBackend, randoms []*rand.Rand)) {
	t.Parallel()
	room := make(chan struct{}, 2*runtime.NumCPU())
	var all sync.WaitGroup
	from, to, together := sequences(n)
	for seed := from; seed < to; seed += together {
		for i, name := range backends {
			var randoms []*rand.Rand
			for s := seed; s < min(seed+together, to); s++ {
				randoms = append(randoms, rand.New(rand.NewPCG(s, uint64(i))))
			}
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
					play(t, backend(t, name), randoms)
				})
			})
		}
	}
	all.Wait()
}

// A liveID is a worker process, wherever it runs.
type liveID struct{ host, pid int }

// A liveGroup is a membership as its members have reported it.
type liveGroup struct {
	uuid, world, step int
	hash              string
	ranks             map[int]liveID
}

// A liveSite is a live job whose memberships are watched.
type liveSite struct {
	*site
	randoms  []*rand.Rand // of the sequences
	random   *rand.Rand   // of the one that is played
	workers  []int        // by host
	agents   []*job       // by host
	replicas bool         // of more than one worker
	flags    func(host int) string
	cut      map[int]bool // hosts that were cut off in the sequence
	boots    int
	groups   map[int]*liveGroup
}

// heed reads one report of a member and checks that it agrees with the others about the group.
func (l *liveSite) heed(line string) *liveGroup {
	l.t.Helper()
	var g liveGroup
	var id liveID
	var rank int
	if _, err := fmt.Sscanf(line, "%d %d/%d %d %d host%d %s", &g.uuid, &rank, &g.world, &id.pid, &g.step, &id.host, &g.hash); err != nil {
		l.fatalf("a worker said %q: %v", line, err)
	}
	known := l.groups[g.uuid]
	if known == nil {
		known = &g
		known.ranks = map[int]liveID{}
		l.groups[g.uuid] = known
	}
	if known.hash != g.hash || known.world != g.world || known.step != g.step || rank < 0 || rank >= g.world {
		l.fatalf("two memberships have the UUID %d: %+v and %+v", g.uuid, known, g)
	}
	if old, again := known.ranks[rank]; again && old != id {
		l.fatalf("%v and %v both have rank %d of the membership %d", old, id, rank, g.uuid)
	}
	known.ranks[rank] = id
	return known
}

// whole waits for a complete membership that satisfies a condition. Agents that end meanwhile are
// started again; only those of hosts that were cut off may.
func (l *liveSite) whole(is func(*liveGroup) bool) *liveGroup {
	l.t.Helper()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for timeout := time.After(patience); ; {
		select {
		case line := <-l.board.Lines:
			if g := l.heed(line); len(g.ranks) == g.world && is(g) {
				return g
			}
		case <-look.C:
			for i, j := range l.agents {
				select {
				case <-j.ended:
					if !l.cut[i] {
						l.fatalf("%s has ended", j.l.name)
					}
					l.agents[i] = l.start(i, l.flags(i))
				default:
				}
			}
		case <-timeout:
			l.fatalf("no such membership")
		}
	}
}

// kill kills a worker.
func (l *liveSite) kill(id liveID) {
	// It may be gone.
	_ = l.lab.Host(id.host).Command(context.Background(), "sh", "-c", fmt.Sprintf("kill -9 %d", id.pid)).Run()
}

// holds is the host whose agent holds the rendezvous, or any where that is none.
func (l *liveSite) holds(or int) int {
	for i, j := range l.agents {
		lines := grep(j.errs(), "rendezvous held by")
		if len(lines) > 0 && strings.Contains(lines[len(lines)-1], "mine=true") {
			return i
		}
	}
	return or
}

// trouble lets something happen to the job, and returns which workers that costs, and the host
// whose workers it may cost; -1: none.
func (l *liveSite) trouble(g *liveGroup) (what string, lost []liveID, hit int) {
	at, host := l.random.IntN(g.world), l.random.IntN(3)
	kill := func(at int) {
		lost = append(lost, g.ranks[at%g.world])
		l.kill(g.ranks[at%g.world])
	}
	off := func(host int) {
		l.lab.Host(host).PowerOff()
		<-l.agents[host].ended
		l.lab.Host(host).Boot()
		// An agent with the PID of the one that was lost would be refused, until that is missed.
		l.boots++
		must(l.lab.Host(host).Command(context.Background(), "sh", "-c", fmt.Sprintf("for i in $(seq %d); do ( : ); done", 100*l.boots)).Run())
		l.agents[host] = l.start(host, l.flags(host))
	}
	hit = -1
	switch l.random.IntN(8) {
	case 0, 1:
		kill(at)
		return "a worker is killed", lost, -1
	case 2:
		kill(at)
		kill(at + 1)
		return "two workers are killed", lost, -1
	case 3:
		kill(at)
		for range l.random.IntN(4) {
			l.heed(<-l.board.Lines)
		}
		kill(at + 2)
		return "two workers are killed, one during the change or after it", lost, -1
	case 4:
		l.agents[host].signal(syscall.SIGKILL)
		<-l.agents[host].ended
		l.agents[host] = l.start(host, l.flags(host))
		return "an agent is killed", nil, host
	case 5:
		host = g.ranks[0].host
		off(host)
		return "the host of rank 0 is lost", nil, host
	case 6:
		host = l.holds(host)
		off(host)
		return "the holder, or a host, is lost", nil, host
	default:
		what = "a host is cut off"
		l.cut[host] = true
		l.lab.Host(host).Unplug()
		if l.replicas || l.random.IntN(2) == 0 { // with a kill, too, there might be no replica group left
			l.whole(func(now *liveGroup) bool {
				return now.uuid > g.uuid && (now.world == g.world-l.workers[host] || l.replicas && now.world < g.world)
			})
		} else {
			what += " for a moment, in which a worker is killed"
			kill(at)
		}
		l.lab.Host(host).Plug()
		return what, lost, host
	}
}

// newLive starts a live job with so many workers on each host.
func newLive(t *testing.T, c *hostsBackend, randoms []*rand.Rand, workers []int, env []string, flags string, program ...string) *liveSite {
	l := &liveSite{site: newSite(t, 3+c.hosts), randoms: randoms, workers: workers, cut: map[int]bool{}, groups: map[int]*liveGroup{}}
	l.conf, l.env, l.program = limit6, env, program
	if c.name == "quorum" {
		l.conf += ",data_dir=" + t.TempDir() // outlives a host, so that the next may be lost at once
	}
	c.prepare(l.site)
	l.flags = func(host int) string {
		return fmt.Sprintf("--live --nnodes 2:3 --max-restarts 999 --nproc-per-node %d %s", l.workers[host], flags)
	}
	for i := range l.workers {
		l.agents = append(l.agents, l.start(i, l.flags(i)))
	}
	return l
}

// play lets trouble come so many times a sequence. After each the group is whole again, with all to
// which nothing has happened. The job then ends as done says, and leaves nothing.
func (l *liveSite) play(times int, done func()) {
	world := 0
	for _, n := range l.workers {
		world += n
	}
	g := l.whole(func(now *liveGroup) bool { return now.world == world })
	forgotten := 0
	for _, l.random = range l.randoms {
		clear(l.cut)
		for range times {
			what, lost, hit := l.trouble(g)
			l.t.Logf("after membership %d: %s: %v, host %d", g.uuid, what, lost, hit)
			now := l.whole(func(now *liveGroup) bool {
				return now.world == world && now.uuid > g.uuid && !slices.ContainsFunc(slices.Collect(maps.Values(now.ranks)), func(id liveID) bool { return slices.Contains(lost, id) })
			})
			stay := slices.Collect(maps.Values(now.ranks))
			for rank, id := range g.ranks {
				if id.host == hit || l.cut[id.host] || slices.Contains(lost, id) || slices.Contains(stay, id) {
					continue
				}
				// gloo may have forgotten a message of the step that was broken off, which docs/live.md says.
				if forgotten++; l.said(" waits for good, since gloo") < forgotten {
					l.fatalf("rank %d of %+v is not in %+v, and nothing happened to it", rank, g, now)
				}
			}
			g = now
		}
	}
	done()
	l.want(0, l.agents...)
	for _, j := range l.agents {
		if left := glob(l.t, j.tmp, "muster-*"); len(left) > 0 {
			l.t.Errorf("%s leaves %q", j.l.name, left)
		}
	}
}

// said counts a text in what all agents have said.
func (l *liveSite) said(text string) (n int) {
	for _, j := range l.site.agents {
		n += strings.Count(j.errs(), text)
	}
	return n
}

// Whatever dies, also at once and during a change, the others continue in one membership after the
// other, and the group is whole again.
func TestLiveRandom(t *testing.T) {
	eachSequence(t, 4, liveBackends, func(t *testing.T, c *hostsBackend, randoms []*rand.Rand) {
		gate := testproc.NewGate(t)
		newLive(t, c, randoms, []int{2, 2, 1}, testproc.Env(nil, gate, ""), "--no-python", worker("live", "gate", "exit:0")...).play(4, gate.Open)
	})
}

// The same where two workers are a replica group: the peer of one that is lost waits for another.
func TestLiveRandomReplicas(t *testing.T) {
	backends := liveBackends
	if os.Getenv("MUSTER_SEQUENCES") == "" {
		backends = []string{"etcd"}
	}
	eachSequence(t, 4, backends, func(t *testing.T, c *hostsBackend, randoms []*rand.Rand) {
		gate := testproc.NewGate(t)
		l := newLive(t, c, randoms, []int{2, 2, 2}, testproc.Env(nil, gate, ""), "--no-python", worker("replica:2", "gate", "exit:0")...)
		l.replicas = true
		l.play(4, gate.Open)
	})
}

// exactSteps is how many steps an undisturbed training is computed for, for each sequence that a job
// plays. One on a busy machine may take more, of which the ranks are compared with each other.
const exactSteps = 1500

// exactSums are what the trainings of testdata/live_exact.py come to after each of so many steps.
func exactSums(t *testing.T, env []string, steps int) []float64 {
	t.Helper()
	j := run(t, muster(t), setup{env: env}, "--standalone", "testdata/live_exact.py", "none", itoa(steps), "0").want(0)
	var sums []float64
	for line := range strings.Lines(j.out()) {
		var s liveStep
		must(json.Unmarshal([]byte(line), &s))
		sums = append(sums, s.Sum)
	}
	return sums
}

// Trainings come, step by step, to the same sums as one that nothing happens to: no sample is
// missed or seen twice, and no rank has another state than the others.
func TestLiveRandomTraining(t *testing.T) {
	path, err := filepath.Abs("testdata/live_exact.py")
	must(err)
	python, err := filepath.Abs("../../python")
	must(err)
	env := withForks(t, testproc.Unpaused, "PYTHONPATH="+python).env
	_, _, together := sequences(1)
	sums := exactSums(t, env, exactSteps*int(together))
	backends := liveBackends
	if os.Getenv("MUSTER_SEQUENCES") == "" {
		backends = []string{"quorum"} // each process imports PyTorch, which takes seconds
	}
	eachSequence(t, 1, backends, func(t *testing.T, c *hostsBackend, randoms []*rand.Rand) {
		stop := filepath.Join(t.TempDir(), "stop")
		flags, env := "", env
		if randoms[0].IntN(2) == 0 {
			flags, env = "--warm", withPython(t, testproc.Unpaused, "PYTHONPATH="+python).env
		}
		l := newLive(t, c, randoms, []int{1, 1, 1}, env, flags, path, stop, itoa(100*len(sums)), "0.05")
		l.play(4, func() { must(os.WriteFile(stop, nil, 0o666)) })
		last, seen, later := 0, map[int]bool{}, map[int]float64{}
		for _, j := range l.site.agents {
			for line := range strings.Lines(j.out()) {
				var s liveStep
				if json.Unmarshal([]byte(line), &s) != nil {
					continue // the last of a worker that was killed
				}
				want, known := later[s.Step]
				if s.Step < len(sums) {
					want = sums[s.Step]
				} else if !known {
					want, later[s.Step] = s.Sum, s.Sum
				}
				if s.Sum != want {
					t.Fatalf("%s: after step %d rank %d of %d has the sum %v, want %v", j.l.name, s.Step, s.Rank, s.World, s.Sum, want)
				}
				last, seen[s.Step] = max(last, s.Step), true
			}
		}
		if len(seen) != last+1 {
			t.Errorf("%d of %d steps were completed", len(seen), last+1)
		}
		t.Logf("%d sequences, %d steps", len(randoms), last)
	})
}
