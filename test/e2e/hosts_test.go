//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/netlab"
	"github.com/muster-run/muster/internal/test/testproc"
)

var tables = flag.String("tables", "", "measure, one after the other, and leave the tables of docs/internals/failures.md in this directory")

// A hostsRow is something that happens to a job, and what is to follow. Run returns
// a cell of the table: how long it took until the outcome.
type hostsRow struct {
	name    string
	outcome string
	run     func(s *site, c *hostsBackend) string
	silent  bool // a host says nothing any more
	elects  bool // only where etcd elects who holds the rendezvous
	agents  bool // only where an agent holds it
	// differs names the backends beside c10d and quorum, which have all rows, in which the outcome
	// has reasons of its own: see the backends.
	differs []string
}

// What the other backends have of their own, beside what c10d and quorum show: muster's store alone
// on a host is a holder that outlives rank 0, and is not an agent; PyTorch's store is polled, by
// compare-and-set; with static the hosts are fixed; the etcd of others outlives all hosts. All else,
// as the agents' protocol with a holder, is the same code.
const (
	ownStore = "c10d, muster store"
	torchs   = "c10d, PyTorch's store"
	static   = "static"
	etcd     = "etcd"
)

var hostsRows = []hostsRow{
	{name: "start", outcome: "all workers run, after the last agent was started", run: rowStart},
	{name: "worker failure, restarts left", outcome: "the other hosts' workers are told to stop; all run again", run: rowRestart, differs: []string{torchs, static}},
	{name: "worker failure, no restarts left", outcome: "the other hosts' workers are told to stop; all agents end, with host, rank and cause in each report", run: rowFail, differs: []string{torchs}},
	{name: "agent killed", outcome: "the others run without it; its own worker is dead too", run: rowKilled, differs: []string{torchs, static}},
	{name: "host cut off", outcome: "the others run without it; its own worker is stopped", run: rowCut, silent: true, differs: []string{torchs, static}},
	{name: "host joins", outcome: "all run with it, after its agent was started", run: rowJoins},
	{name: "host leaves cleanly", outcome: "the others run without it", run: rowLeaves, differs: []string{static}},
	{name: "spare host", outcome: "it ends with the job with status 0, after the last worker was told to exit", run: rowSpare, differs: []string{torchs}},
	{name: "spare host, and the job fails", outcome: "it ends with the job with status 1, after a worker failed", run: rowSpareFails},
	{name: "host loses power and starts again before it is missed", outcome: "all run again, after its agent was started: with the same PID; with another", run: rowReboot, differs: []string{static, etcd}},
	{name: "another job at the same endpoint", outcome: "both run, where they can; where one holds the rendezvous of the other, that is told", run: rowAnotherJob, differs: []string{ownStore, torchs, static, etcd}},
	{name: "agent of rank 0 killed", outcome: "the others run without it", run: rowKilled0, differs: []string{ownStore}},
	{name: "host of rank 0 lost", outcome: "the others run without it", run: rowLost0, silent: true, differs: []string{torchs}},
	{name: "holder of the rendezvous lost", outcome: "the others run without it", run: rowLostHolder, silent: true, differs: []string{ownStore, torchs, etcd}},
	{name: "holder stopped (SIGSTOP), and continued", outcome: "the others run without it, then with it", run: rowStopped, agents: true, silent: true, differs: []string{etcd}},
	{name: "holder frozen with all of its host, and thawed", outcome: "the others run without it, then with it", run: rowFrozen, agents: true, silent: true, differs: []string{etcd}},
	{name: "holder cut off from the other hosts alone", outcome: "the others run without it, then with it", run: rowApart, agents: true, silent: true, differs: []string{etcd}},
	{name: "holder of the rendezvous, or rank 0, succeeds first", outcome: "it waits for the others; all end with status 0, after the last worker was told to exit", run: rowDone, differs: []string{torchs, static}},
	{name: "link to the rendezvous down at start", outcome: "all workers run, after the link is up", run: rowLinkDown, differs: []string{etcd}},
	{name: "started again under its ID after status 0, 1 and 75", outcome: "all workers of the new job run, after the last agent was started, at most", run: rowAgain, differs: []string{ownStore, torchs, static, etcd}},
	{name: "drained, and replaced under its ID while it ends", outcome: "all workers of the new job run, after the last agent of the one before ended, at most", run: rowOverlap, differs: []string{ownStore, etcd}},
	{name: "etcd's majority lost for less than the leases", outcome: "no worker is stopped", run: rowNoMajority, elects: true, differs: []string{etcd}},
	{name: "etcd's majority lost for longer than the leases", outcome: "no worker is stopped; when one fails, all run again", run: rowNoLease, elects: true, silent: true, differs: []string{etcd}},
}

// TestHosts is the matrix of backends and events: all of it in longer runs and for the document, else
// each row with the backends that differ in it. A cell mostly waits, so that more
// of them run at once than there are CPUs; those that are measured for the document
// run one after the other.
func TestHosts(t *testing.T) {
	all := *tables != "" || os.Getenv("MUSTER_E2E_LONG") != ""
	atOnce := 5
	if *tables != "" {
		atOnce = 1
	} else {
		t.Parallel()
	}
	table := newHostsTable()
	room := make(chan struct{}, atOnce)
	var cells sync.WaitGroup
	for _, c := range slices.Backward(hostsBackends) { // the slow ones first
		for _, row := range hostsRows {
			if why := c.not[row.name]; why != "" {
				table.set(c.name, row.name, why)
				continue
			}
			if row.elects && c.members == nil || row.agents && c.holder == nil && !c.endsWith0 ||
				!all && c.name != "c10d" && c.name != "quorum" && !slices.Contains(row.differs, c.name) {
				continue
			}
			room <- struct{}{}
			cells.Go(func() {
				defer func() { <-room }()
				t.Run(c.name+"/"+row.name, func(t *testing.T) {
					s := newSite(t, 3+c.hosts)
					switch {
					case *tables != "" && (c.holder == nil || row.silent):
						s.conf = limit3
					case row.silent:
						s.conf = limit6
					}
					if row.elects || row.agents {
						s.env = []string{testproc.Unpaused} // of members and agents that the test stops
					}
					c.prepare(s)
					text := row.run(s, &c)
					table.set(c.name, row.name, text)
					t.Log(text)
				})
			})
		}
	}
	cells.Wait()
	t.Log("\n" + table.String())
	if *tables != "" && !t.Failed() {
		leave(t, "matrix", table.String())
	}
}

// ms is a duration as the table has it.
func ms(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// up waits until n workers run together that were started after a time, and
// returns when the last of them did.
func (s *site) up(since time.Time, n int) time.Time {
	s.t.Helper()
	up := s.running(since, n)
	s.agree(up)
	return last(up)
}

// agree checks that workers have different ranks and hosts and one meeting point.
func (s *site) agree(up []hostReport) {
	s.t.Helper()
	ranks, hosts := map[int]bool{}, map[string]bool{}
	for _, r := range up {
		ranks[r.rank], hosts[r.host] = true, true
		if r.master != up[0].master || r.restart != up[0].restart || r.rank >= len(up) {
			s.fatalf("workers do not agree: %+v", up)
		}
	}
	if len(ranks) != len(up) || len(hosts) != len(up) {
		s.fatalf("workers share ranks or hosts: %+v", up)
	}
}

// rankOn is the rank of a host's worker that has reported last.
func (s *site) rankOn(host int) int {
	s.t.Helper()
	for _, r := range slices.Backward(s.all) {
		if r.host == s.lab.Host(host).Name {
			return r.rank
		}
	}
	s.fatalf("no worker on host%d", host)
	return -1
}

func rowStart(s *site, _ *hostsBackend) string {
	began := time.Now()
	agents := s.startAll(3, "--nnodes 3")
	started := time.Now()
	up := s.up(began, 3)
	s.finish(agents...)
	return ms(up.Sub(started))
}

func rowRestart(s *site, _ *hostsBackend) string {
	agents := s.startAll(3, "--nnodes 3 --max-restarts 1")
	s.up(time.Time{}, 3)
	failed := time.Now()
	s.order(1, 3)
	term := last(s.await(failed, 2, "term", 3))
	up := s.up(failed, 3)
	if n := s.all[len(s.all)-1].restart; n != 1 {
		s.fatalf("the second attempt has restart count %d, want 1", n)
	}
	s.finish(agents...)
	for _, j := range []*job{agents[0], agents[2]} {
		j.says("workers failed on another host", "host=host1", "exit code 3", "restart=1/1").saysNot("no restart is counted")
	}
	return ms(term.Sub(failed)) + "; " + ms(up.Sub(failed))
}

func rowFail(s *site, _ *hostsBackend) string {
	agents := s.startAll(3, "--nnodes 3")
	s.up(time.Time{}, 3)
	failed := time.Now()
	s.order(1, 3)
	term := last(s.await(failed, 2, "term", 3))
	ended := s.want(1, agents...)
	for _, j := range agents {
		j.says(fmt.Sprintf("rank %d", s.rankOn(1)), "host1", "exit code 3")
	}
	return ms(term.Sub(failed)) + "; " + ms(ended.Sub(failed))
}

// nodes is --nnodes for three hosts of which one may be lost.
func (c *hostsBackend) nodes() string {
	if c.fixed {
		return "--nnodes 3"
	}
	return "--nnodes 2:3"
}

const (
	lostNode = "a node of the round is lost: it died or cannot be reached"
	leftNode = "a node of the round has left"
)

// continues waits until the hosts that are left run again after one is gone, and
// finishes the job. Each says why. Where the number of hosts is fixed another agent takes the place
// of that on host 2.
func (s *site) continues(c *hostsBackend, since time.Time, why string, agents ...*job) string {
	s.t.Helper()
	n, stopped := len(agents), ""
	if c.fixed {
		term := last(s.await(since, n, "term", n+1))
		stopped = "stop " + ms(term.Sub(since)) + ", replaced "
		since = time.Now()
		agents = append(agents, s.start(2, c.nodes()))
		n++
	}
	up := s.up(since, n)
	if n := s.all[len(s.all)-1].restart; n != 0 {
		s.fatalf("%d restarts were counted, want none", n)
	}
	s.finish(agents...)
	for _, j := range agents[:2] {
		if strings.Contains(j.errs(), "the agent that held the rendezvous is gone") && c.holder != nil {
			continue
		}
		if strings.Contains(j.errs(), "held by PyTorch") && strings.Contains(j.errs(), leftNode) {
			continue // another agent had seen it before, and left the round: a store that is polled shows both at once
		}
		j.says(why, "no restart is counted")
	}
	return stopped + ms(up.Sub(since))
}

func rowKilled(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	killed := time.Now()
	agents[2].signal(syscall.SIGKILL)
	agents[2].noneLeft(soon)
	return s.continues(c, killed, lostNode, agents[:2]...)
}

func rowCut(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	cut := time.Now()
	s.lab.Host(2).Unplug()
	if c.holder != nil {
		return s.cutAndBack(c, cut, agents)
	}
	text := ""
	if !c.fixed {
		text = s.continues(c, cut, lostNode, agents[:2]...)
	}
	ended := s.want(1, agents[2])
	if c.fixed {
		s.lab.Host(2).Plug()
		text = s.continues(c, cut, lostNode, agents[:2]...)
	}
	return text + "; " + ms(ended.Sub(cut))
}

// cutAndBack is rowCut for backends that no host is needed for: the agent that is
// cut off waits for the others.
func (s *site) cutAndBack(c *hostsBackend, cut time.Time, agents []*job) string {
	s.t.Helper()
	without := s.up(cut, 2)
	stopped := s.await(cut, 3, "term", 3)
	back := time.Now() // before the link is up: that can be quicker than the test
	s.lab.Host(2).Plug()
	with := s.up(back, 3)
	s.finish(agents...)
	return ms(without.Sub(cut)) + "; " + ms(last(stopped).Sub(cut)) + ", back " + ms(with.Sub(back))
}

func rowJoins(s *site, c *hostsBackend) string {
	agents := s.startAll(2, c.nodes())
	s.up(time.Time{}, 2)
	joins := time.Now()
	agents = append(agents, s.start(2, c.nodes()))
	up := s.up(joins, 3)
	s.finish(agents...)
	return ms(up.Sub(joins))
}

func rowLeaves(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	leaves := time.Now()
	agents[2].signal(syscall.SIGTERM)
	s.want(1, agents[2])
	return s.continues(c, leaves, "a node of the round has left", agents[:2]...)
}

func rowSpare(s *site, _ *hostsBackend) string {
	agents := s.withSpare()
	done := time.Now()
	s.order(0, 0)
	s.order(1, 0)
	return ms(s.want(0, agents...).Sub(done))
}

func rowSpareFails(s *site, _ *hostsBackend) string {
	agents := s.withSpare()
	failed := time.Now()
	s.order(0, 3)
	return ms(s.want(1, agents...).Sub(failed))
}

// withSpare starts a job of two hosts, and a third one that waits as a spare.
func (s *site) withSpare() []*job {
	s.t.Helper()
	agents := s.startAll(2, "--nnodes 2")
	s.up(time.Time{}, 2)
	spare := s.start(2, "--nnodes 2")
	s.untilSays(spare, " spare")
	return append(agents, spare)
}

// agentOf0 returns the agent of rank 0, and the others.
func (s *site) agentOf0(agents []*job) (zero *job, others []*job) {
	s.t.Helper()
	for _, j := range agents {
		if s.rankOn(s.hostOf(j)) == 0 {
			zero = j
		} else {
			others = append(others, j)
		}
	}
	return zero, others
}

// allEnd waits until agents have ended because nobody holds the rendezvous.
func (s *site) allEnd(c *hostsBackend, since time.Time, agents ...*job) string {
	s.t.Helper()
	ended := s.want(1, agents...)
	for _, j := range agents {
		j.says("lost the connection to the rendezvous", "a "+c.backend+" job cannot outlive it")
	}
	return "ends " + ms(ended.Sub(since))
}

func rowKilled0(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	zero, others := s.agentOf0(agents)
	if c.endsWith0 {
		zero, others = agents[0], agents[1:]
	}
	killed := time.Now()
	zero.signal(syscall.SIGKILL)
	zero.noneLeft(soon)
	if c.endsWith0 {
		return s.allEnd(c, killed, others...)
	}
	return s.continues(c, killed, lostNode, others...)
}

func rowLost0(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	zero, others := s.agentOf0(agents)
	if c.endsWith0 {
		zero, others = agents[0], agents[1:]
	}
	lost := time.Now()
	s.lab.Host(s.hostOf(zero)).PowerOff()
	if c.endsWith0 {
		return s.allEnd(c, lost, others...)
	}
	return s.continues(c, lost, lostNode, others...)
}

func rowLostHolder(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	lost := time.Now()
	if c.holder == nil {
		s.lab.Host(3).PowerOff()
		return s.allEnd(c, lost, agents...)
	}
	holder := c.holder(s)
	s.lab.Host(holder).PowerOff()
	return s.continues(c, lost, lostNode, slices.DeleteFunc(agents, func(j *job) bool { return s.hostOf(j) == holder })...)
}

// rowStopped: the agent that holds the rendezvous is stopped, and nothing else.
func rowStopped(s *site, c *hostsBackend) string {
	signal := func(sig syscall.Signal) func(int) {
		return func(holder int) { s.agents[holder].signal(sig) }
	}
	return s.holderAway(c, signal(syscall.SIGSTOP), signal(syscall.SIGCONT))
}

// rowFrozen: all processes of the holder's host are stopped.
func rowFrozen(s *site, c *hostsBackend) string {
	signal := func(sig syscall.Signal) func(int) {
		return func(holder int) {
			for _, pid := range s.lab.Host(holder).Processes() {
				if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
					s.t.Fatal(err)
				}
			}
		}
	}
	return s.holderAway(c, signal(syscall.SIGSTOP), signal(syscall.SIGCONT))
}

// rowApart: the holder does not reach the hosts of the other agents, but others.
func rowApart(s *site, c *hostsBackend) string {
	others := func(holder int, do func(h, other *netlab.Host)) {
		for i := range 3 {
			if i != holder {
				do(s.lab.Host(holder), s.lab.Host(i))
			}
		}
	}
	return s.holderAway(c, func(holder int) { others(holder, (*netlab.Host).Cut) },
		func(holder int) { others(holder, (*netlab.Host).Heal) })
}

// holderAway waits until the others run after the holder has gone away, and until all run
// after it is back; where the job cannot outlive the holder, until the others have ended.
func (s *site) holderAway(c *hostsBackend, away, back func(holder int)) string {
	s.t.Helper()
	agents := s.startAll(3, c.nodes())
	s.up(time.Time{}, 3)
	holder := 0
	if !c.endsWith0 {
		holder = c.holder(s)
	}
	gone := time.Now()
	away(holder)
	if c.endsWith0 {
		text := s.allEnd(c, gone, agents[1:]...)
		back(holder)
		agents[0].signal(syscall.SIGTERM) // it waits for others
		s.want(1, agents[0])
		return text
	}
	without := s.up(gone, 2)
	since := time.Now()
	back(holder)
	with := s.up(since, 3)
	if n := s.all[len(s.all)-1].restart; n != 0 {
		s.fatalf("%d restarts were counted, want none", n)
	}
	s.finish(agents...)
	return ms(without.Sub(gone)) + "; back " + ms(with.Sub(since))
}
