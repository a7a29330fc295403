package election_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

// One of three members is lost in each phase of an election, and each member in turn.
func TestMemberKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		when func(l *lab, victim int) []*agent
	}{
		{"before the first agent", func(l *lab, victim int) []*agent {
			l.members[victim].kill()
			return []*agent{l.agent(0), l.agent(1)}
		}},
		{"while agents come", func(l *lab, victim int) []*agent {
			first := l.agent(0)
			l.members[victim].kill()
			return []*agent{first, l.agent(1)}
		}},
		{"when one leads", func(l *lab, victim int) []*agent {
			agents := []*agent{l.agent(0), l.agent(1)}
			agree(l.t, agents...)
			l.members[victim].kill()
			return agents
		}},
		{"together with the leader", func(l *lab, victim int) []*agent {
			leader, others := agree(l.t, l.agent(0), l.agent(1), l.agent(2))
			term := leader.leader().Term
			kill(l.t, l.members[victim].cmd.Process.Pid)
			leader.closeNow(false)
			wait(l.t, others[0].Lost(term), "the loss of the leader")
			return others
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for victim := range 3 {
				l := newLab(t, 3, "")
				agents := tt.when(l, victim)
				leader, others := agree(t, agents...)
				// The cluster still does all that it has to.
				term := leader.leader().Term
				start := time.Now()
				leader.closeNow(false)
				wait(t, others[0].Lost(term), "the loss of the leader")
				if !others[0].leader().Mine {
					t.Errorf("member %d killed: got leader %+v, want the agent that is left", victim, others[0].leader())
				}
				t.Logf("member %d killed: another leads %v after the leader left", victim, time.Since(start).Round(time.Millisecond))
				others[0].closeNow(true)
				l.end()
			}
		})
	}
}

// end stops the members.
func (l *lab) end() {
	for _, m := range l.members {
		m.kill()
	}
}

// With two of three members lost nobody is elected. When they are back, with their data,
// the leader still leads; without it, there is another.
func TestMajorityLost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data func() string
		same bool
	}{
		{"data kept", t.TempDir, true},
		{"data lost", func() string { return "" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 3, tt.data())
			leader, others := agree(t, l.agent(0), l.agent(1))
			term := leader.leader().Term
			l.members[1].kill()
			l.members[2].kill()
			start := time.Now()
			lost, others0 := lostAfter(leader, term), others[0].Lost(term)
			lease := func(want bool) {
				t.Helper()
				if good := wait(t, leader.Lease(), "word of the leader's lease"); good != want {
					t.Errorf("the leader's lease: %v, want %v", good, want)
				}
			}
			text := leader.waits("etcd has no leader", "1 of 3 members answer", "a majority is needed",
				"up: "+l.names[0], l.names[1]+": connect: connection refused", l.names[2]+": connect: connection refused")
			t.Logf("told after %v: %s", time.Since(start).Round(time.Millisecond), text)
			l.members[0].expect(`1 of 3 members of the quorum are up: ` + l.names[1] + ` (connect: connection refused)`)
			lease(false)
			t.Logf("the leader is in doubt after %v", time.Since(start).Round(time.Millisecond))
			start = time.Now()
			l.start(1)
			l.start(2).expect(`"ready":true`)
			t.Logf("the quorum was back after %v", time.Since(start).Round(time.Millisecond))
			if tt.same {
				lease(true)
			} else {
				wait(t, lost, "the leader's own end")
				wait(t, others0, "the end of the leader, as the other sees it")
			}
			leader.waits("")
			agree(t, append(others, leader)...)
			if now := leader.leader(); tt.same && (!now.Mine || now.Term != term) {
				t.Errorf("leader %+v, want still term %d", now, term)
			}
		})
	}
}

// lostAfter measures how long it takes from now until an agent sees a leader's end.
func lostAfter(a *agent, term int64) <-chan time.Duration {
	took := make(chan time.Duration, 1)
	start, lost := time.Now(), a.Lost(term)
	go func() {
		<-lost
		took <- time.Since(start)
	}()
	return took
}

// A replacement of a lost member, with no data, counts as a member.
func TestReplacement(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	leader, others := agree(t, l.agent(0), l.agent(1))
	for victim := range 3 {
		l.members[victim].kill()
		start := time.Now()
		l.start(victim).expect(`"ready":true`)
		t.Logf("member %d is replaced after %v", victim, time.Since(start).Round(time.Millisecond))
	}
	// None of the first members is left, and the leader is still the same.
	if got := others[0].leader(); got.Term != leader.leader().Term {
		t.Errorf("leader %+v, want still %+v", got, leader.leader())
	}
	term := leader.leader().Term
	start := time.Now()
	leader.closeNow(false)
	wait(t, others[0].Lost(term), "the loss of the leader")
	if !others[0].leader().Mine {
		t.Errorf("got leader %+v", others[0].leader())
	}
	t.Logf("another leads %v after the leader left", time.Since(start).Round(time.Millisecond))
	others[0].closeNow(false)
}

// Three agents run a member each, as with --rdzv-backend quorum.
func TestOwnMembers(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	l := &lab{t: t, names: newNames(3)}
	start := time.Now()
	var agents []*agent
	for i := range l.names {
		agents = append(agents, startAgent(t, l.quorumConfig(i)))
		if i == 0 {
			agents[0].waits("1 of 3 members of the quorum are up", l.names[1]+" (connect: connection refused)", "do not answer")
			start = time.Now()
		}
	}
	leader, others := agree(t, agents...)
	agents[0].waits("")
	t.Logf("three members and a leader after %v", time.Since(start).Round(time.Millisecond))

	term := leader.leader().Term
	start = time.Now()
	leader.closeNow(false) // its member goes too
	t.Logf("agent and member of the leader closed after %v", time.Since(start).Round(time.Millisecond))
	wait(t, others[0].Lost(term), "the loss of the leader")
	agree(t, others...)

	for i, a := range agents { // a new agent on that host
		if a == leader {
			agents[i] = startAgent(t, l.quorumConfig(i))
		}
	}
	agree(t, agents...)

	start = time.Now()
	ends := make(chan error)
	for _, a := range agents {
		go func() { ends <- a.Close(t.Context(), true) }()
	}
	for range agents {
		if err := wait(t, ends, "the end of an agent"); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	t.Logf("all three closed after %v", time.Since(start).Round(time.Millisecond))
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// The last of several agents to close the run finds the members of all others gone, and its own
// knows that it was closed.
func TestLastToClose(t *testing.T) {
	l := &lab{t: t, names: newNames(3)}
	var agents []*agent
	for i := range l.names {
		agents = append(agents, startAgent(t, l.quorumConfig(i)))
	}
	agree(t, agents...)
	last := agents[2]
	freeze(t, last.BridgePID()) // it does not hear that the run is closed
	for _, a := range agents[:2] {
		a.closeNow(true)
	}
	ends := make(chan error)
	go func() { ends <- last.Close(t.Context(), true) }()
	if err := unix.Kill(last.BridgePID(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, ends, "the end of the last agent"); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func (l *lab) quorumConfig(i int) election.Config {
	cfg := l.config(i)
	bind, _, _ := strings.Cut(l.names[i], ":")
	cfg.OwnMembers = true
	cfg.Member = &pipe.Serve{Name: l.names[i], Members: l.names, Bind: bind}
	return cfg
}

// A member that dies is started again, and finds its place again.
func TestOwnMemberKilled(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, names: newNames(3)}
	var agents []*agent
	for i := range l.names {
		agents = append(agents, startAgent(t, l.quorumConfig(i)))
	}
	leader, others := agree(t, agents...)
	term := leader.leader().Term
	for _, a := range agents {
		a.waitMember()
	}
	for _, a := range agents { // one after the other: more than a majority in all
		kill(t, a.MemberPID())
		a.waitMember()
	}
	for _, a := range others {
		if now := a.leader(); now.Term != term {
			t.Errorf("leader %+v, want still term %d", now, term)
		}
	}
}

func TestMemberConfigErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		member pipe.Serve
		want   string
	}{
		{"two", pipe.Serve{Name: "a", Members: []string{"a", "b"}}, "2 members: want 1, 3 or 5"},
		{"twice", pipe.Serve{Name: "a", Members: []string{"a", "b", "b:29400"}}, `member "b:29400" is named twice`},
		{"stranger", pipe.Serve{Name: "d", Members: []string{"a", "b", "c"}}, `this host's name "d" is not among the members ["a" "b" "c"]`},
		{"port", pipe.Serve{Name: "a:65535", Members: []string{"a:65535"}}, "port 65535: want 1 to 65534"},
		{"bind", pipe.Serve{Name: "a", Members: []string{"a"}, Bind: "eth0"}, `bind "eth0": want an IP address`},
		{"slow", pipe.Serve{Name: "a", Members: []string{"a"}, Heartbeat: pipe.Millis(time.Second)}, "election timeout 500ms with heartbeats every 1s"},
		{"foreign address", pipe.Serve{Name: "a", Members: []string{"a"}, Bind: "192.0.2.1"}, "cannot assign requested address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := &lab{t: t, names: newNames(1)}
			cfg := l.config(0)
			cfg.Member = &tt.member
			a := startAgent(t, cfg)
			text := a.waits("this host's member of the quorum does not run")
			if !strings.Contains(text, tt.want) {
				t.Errorf("got %q, want %q in it", text, tt.want)
			}
			if len(tt.member.Members) == 1 {
				if _, err := a.tryLeader(); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Leader: got %v, want %q in it", err, tt.want)
				}
			}
		})
	}
}

// A host whose place was taken in the meantime, by one of its name with other data,
// comes back with its old data and is taken in again.
func TestOldData(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, t.TempDir())
	data := l.data
	l.members[1].kill()
	l.data = ""
	l.start(1).expect(`"ready":true`)
	l.members[1].kill()
	l.data = data
	start := time.Now()
	l.start(1).expect(`"ready":true`)
	t.Logf("taken in again after %v", time.Since(start).Round(time.Millisecond))
	l.members[0].kill() // so that it counts
	agree(t, l.agent(0), l.agent(1))
}

// A given data directory keeps a run's data until the job ends.
func TestDataDir(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	l := &lab{t: t, names: newNames(1)}
	for _, done := range []bool{false, true} {
		cfg := l.quorumConfig(0)
		cfg.RunID = "a/b"
		cfg.Member.DataDir = data
		a := startAgent(t, cfg)
		a.leader()
		a.closeNow(done)
		left, err := os.ReadDir(data)
		if err != nil || (len(left) == 0) != done {
			t.Errorf("Close(done=%v): left in the data directory %v, %v", done, left, err)
		}
	}
}
