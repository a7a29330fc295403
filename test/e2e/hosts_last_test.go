//go:build linux

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What stops no worker that is sound, and no job that is started again.

// rowAgain: the same command at once, after each way in which a job can end.
func rowAgain(s *site, c *hostsBackend) string {
	if c.keepsEnded {
		return refusedAgain(s)
	}
	var slowest time.Duration
	for _, status := range []int{0, 1, 75, 0} {
		began := time.Now()
		agents := s.startAll(3, "--nnodes 3 --preemption-signals SIGTERM")
		started := time.Now()
		slowest = max(slowest, s.up(began, 3).Sub(started))
		if n := s.all[len(s.all)-1].restart; n != 0 {
			s.fatalf("a new job has restart count %d, want 0", n)
		}
		s.end(status, agents)
	}
	return ms(slowest)
}

// rowOverlap: a job is preempted, and started again under its ID while its workers still save. The
// new agents wait for it, or meet beside it, and neither end with it nor hold it up.
func rowOverlap(s *site, _ *hostsBackend) string {
	s.env = append(s.env, "MUSTER_E2E_SAVES=1")
	began := time.Now()
	old := s.startAll(3, "--nnodes 3 --preemption-signals SIGTERM")
	s.up(began, 3)
	old[2].signal(syscall.SIGTERM)
	s.await(began, 3, "term", 3)
	stopped := time.Now()
	again := s.startAll(3, "--nnodes 3")
	for _, j := range again {
		s.untilSays(j, " muster/")
	}
	for _, j := range old {
		s.order(s.hostOf(j), 0)
	}
	ended := s.want(75, old...)
	up := s.up(stopped, 3)
	s.finish(again...)
	if n := s.count("up", stopped); n != 3 {
		s.fatalf("workers of the new job were started %d times, want 3", n)
	}
	return ms(max(0, up.Sub(ended)))
}

// rowReboot: a host that does not hold the rendezvous loses its power, and its agent is started
// again with the PID of before, as in a container, and then once more with another.
func rowReboot(s *site, c *hostsBackend) string {
	s.conf = "keep_alive_interval=3,keep_alive_max_attempt=20,last_call_timeout=1,join_timeout=150"
	agents := s.startAll(3, "--nnodes 3")
	s.up(time.Time{}, 3)
	host := 1
	if c.holder != nil && c.holder(s) == host {
		host = 2
	}
	var took []string
	for _, other := range []bool{false, true} {
		off := time.Now()
		s.lab.Host(host).PowerOff()
		s.lab.Host(host).Boot()
		if other {
			if err := s.lab.Host(host).Command(s.t.Context(), "true").Run(); err != nil {
				s.t.Fatal(err)
			}
		}
		started := time.Now()
		agents[host] = s.start(host, "--nnodes 3")
		took = append(took, ms(s.up(off, 3).Sub(started)))
	}
	s.finish(agents...)
	return strings.Join(took, "; ")
}

// rowAnotherJob: the agents of a second job name the endpoint at which the first one meets.
func rowAnotherJob(s *site, c *hostsBackend) string {
	first := s.startAll(2, "--nnodes 2")
	s.up(time.Time{}, 2)
	began, told := time.Now(), "the agent of another job holds the rendezvous at this endpoint"
	s.runID += "-other"
	if c.fixed { // without a node rank 0 of its own
		second := s.start(2, "--nnodes 3")
		s.untilSays(second, told)
		second.signal(syscall.SIGTERM)
		s.want(1, second)
		s.finish(first...)
		return "told"
	}
	second := s.start(2, "--nnodes 1:2")
	s.up(began, 1)
	if c.endsWith0 {
		second.says(told)
		s.finish(second) // which may end with the first
		s.finish(first...)
		return "both run"
	}
	second.saysNot(told)
	s.finish(first...)
	s.finish(second)
	if n := s.count("term", time.Time{}); n != 0 {
		s.fatalf("%d workers of the second job were told to stop", n)
	}
	return "both run"
}

// end ends a job of three hosts with a status.
func (s *site) end(status int, agents []*job) {
	s.t.Helper()
	switch status {
	case 0:
		s.finish(agents...)
		return
	case 1:
		s.order(1, 3)
	case 75:
		agents[2].signal(syscall.SIGTERM)
	}
	s.want(status, agents...)
}

// refusedAgain: a job has ended with each status, and one under its ID ends at once and
// says what to do.
func refusedAgain(s *site) string {
	id := s.runID
	for _, status := range []int{0, 1, 75} {
		s.runID = fmt.Sprint(id, "-", status)
		began := time.Now()
		agents := s.startAll(3, "--nnodes 3 --preemption-signals SIGTERM")
		s.up(began, 3)
		s.end(status, agents)
		again := s.start(0, "--nnodes 3")
		s.want(1, again)
		s.untilSays(again, "start the job again with another --rdzv-id")
	}
	return "refused"
}

// rowDone: workers of three hosts succeed one after the other, and the hosts wait
// for each other no longer than a second. The first one is that which the others
// cannot do without.
func rowDone(s *site, c *hostsBackend) string {
	agents := s.startAll(3, c.nodes()+" --exit-barrier-timeout 1")
	all := s.up(time.Time{}, 3) // two may have begun without the third
	zero, _ := s.agentOf0(agents)
	first := zero
	switch {
	case c.endsWith0:
		first = agents[0]
	case c.holder != nil:
		first = agents[c.holder(s)]
	}
	var others []*job
	for _, j := range agents {
		switch j {
		case first:
		case zero:
			others = append(others, j)
		default:
			others = slices.Insert(others, 0, j)
		}
	}
	s.order(s.hostOf(first), 0)
	s.untilSays(first, "the others need this host")
	s.order(s.hostOf(others[0]), 0)
	s.want(0, others[0])
	s.untilSays(others[1], "a node of the round is gone, after its workers had succeeded; going on")
	done := time.Now()
	s.order(s.hostOf(others[1]), 0)
	ended := s.want(0, agents...)
	if n := s.count("term", all); n != 0 {
		s.fatalf("%d workers that ran were told to stop", n)
	}
	return ms(ended.Sub(done))
}

// rowNoMajority: two of three members of etcd stop for a moment.
func rowNoMajority(s *site, c *hostsBackend) string { return s.noMajority(c, false) }

// rowNoLease: they stop for longer than the leases, and a worker fails meanwhile.
func rowNoLease(s *site, c *hostsBackend) string { return s.noMajority(c, true) }

func (s *site) noMajority(c *hostsBackend, long bool) string {
	agents := s.startAll(3, c.nodes()+" --max-restarts 1")
	all := s.up(time.Time{}, 3) // two may have begun without the third
	holder := c.holder(s)
	over := time.After(8 * time.Second) // longer than limit6 by a quarter
	var said [3]int
	for i, j := range agents {
		said[i] = len(j.errs())
	}
	stopped := s.signalMembers(c, holder, syscall.SIGSTOP)
	for i, j := range agents {
		s.untilSays(j, "perhaps no other can be elected")
		s.untilSays(j, "1 of 3 members ")
		if line := j.errs()[said[i]:]; strings.Contains(line, "waiting for hosts") {
			s.t.Errorf("host %d waits for hosts while all of them train: %s", i, line)
		}
	}
	text := "yes"
	if long {
		s.untilSays(agents[holder], "the lease of this agent, which holds the rendezvous, has expired or was given up")
		failed := time.Now()
		s.order(1, 3)
		text += "; " + ms(s.up(failed, 3).Sub(failed))
		<-over // the members that continue find all leases run out
	}
	for _, pid := range stopped {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			s.t.Fatal(err)
		}
	}
	if long {
		s.untilSays(agents[holder], "the lease of this agent, which holds the rendezvous, is good again")
	}
	s.finish(agents...)
	want := 0
	if long {
		want = 2 // of those whose peer failed
	}
	if n := s.count("term", all); n != want {
		s.fatalf("%d workers were told to stop, want %d", n, want)
	}
	for i, j := range agents {
		if later := j.errs()[said[i]:]; strings.Contains(later, "no restart is counted") {
			s.t.Errorf("host %d: %s", i, later)
		}
	}
	return text
}

// signalMembers signals the members of etcd that are not on a host, two of them at
// most, and returns which these are.
func (s *site) signalMembers(c *hostsBackend, not int, sig syscall.Signal) (pids []int) {
	s.t.Helper()
	for _, i := range c.members {
		if i == not || len(pids) == 2 {
			continue
		}
		for _, pid := range s.lab.Host(i).Processes() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if !strings.Contains(string(line), "muster-quorum\x00serve\x00") {
				continue
			}
			if err := syscall.Kill(pid, sig); err != nil {
				s.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) != 2 {
		s.fatalf("found the members %v, want two", pids)
	}
	return pids
}
