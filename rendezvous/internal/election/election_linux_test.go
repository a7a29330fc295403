package election_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/rendezvous/internal/election"
)

func TestOneLeads(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	leader, others := agree(t, l.agent(0), l.agent(1), l.agent(2))
	before := leader.leader()
	start := time.Now()
	leader.closeNow(false)
	wait(t, others[0].Lost(before.Term), "the loss of the leader")
	after, _ := agree(t, others...)
	t.Logf("the leader left, and another led after %v", time.Since(start).Round(time.Millisecond))
	if now := after.leader(); now.Term <= before.Term || now.Addr == before.Addr {
		t.Errorf("leader %+v after %+v: want another, with a later term", now, before)
	}
	if _, err := leader.Leader(t.Context()); !errors.Is(err, election.ErrStopped) {
		t.Errorf("Leader after Close: got %v, want ErrStopped", err)
	}
	wait(t, leader.Lost(before.Term), "the loss, as the one that left sees it")
}

func TestAgentKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ELECTION_TEST_AGENT=1")
	configs := []election.Config{l.config(0), l.config(1), l.config(2)}
	for i := range configs {
		configs[i].TTL = 3 * l.config(i).TTL // much more than it may take to give the lease back
	}
	first := spawn(t, cmd, jsonConfig(&configs[0]))
	first.expect("leader host0:29400 true")
	children := childrenOf(t, cmd.Process.Pid)
	agents := []*agent{startAgent(t, configs[1]), startAgent(t, configs[2])}
	term := agents[0].leader().Term
	if got := agents[1].leader(); got.Term != term || got.Mine {
		t.Fatalf("got leader %+v, want host0 in term %d", got, term)
	}
	start := time.Now()
	_ = cmd.Process.Kill()
	wait(t, agents[0].Lost(term), "the loss of the leader")
	lost := time.Since(start)
	agree(t, agents...)
	t.Logf("the leader's agent was killed: known after %v, another led after %v",
		lost.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if lost > time.Duration(configs[0].TTL)/2 {
		t.Errorf("took %v: the lease ran out, instead of being given back", lost)
	}
	<-first.over
	for _, pid := range children {
		awaitEnd(t, pid)
	}
}

// jsonConfig is a configuration without what JSON cannot have.
func jsonConfig(cfg *election.Config) any {
	return struct {
		pipe.Elect
		Program string
	}{cfg.Elect, cfg.Program}
}

// An agent that is stopped loses its leadership within the TTL, though its bridge runs, and
// hears of it when it is continued.
func TestAgentStopped(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ELECTION_TEST_AGENT=1", testproc.Unpaused)
	cfg := l.config(0)
	first := spawn(t, cmd, jsonConfig(&cfg))
	first.expect("leader host0:29400 true")
	other := l.agent(1)
	term := other.leader().Term
	start := time.Now()
	freeze(t, cmd.Process.Pid)
	wait(t, other.Lost(term), "the loss of the leader")
	t.Logf("TTL %v: the stopped agent was lost after %v", time.Duration(cfg.TTL), time.Since(start).Round(time.Millisecond))
	next := other.leader()
	if !next.Mine {
		t.Errorf("leader %+v, want the other", next)
	}
	if err := unix.Kill(cmd.Process.Pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first.expect("leader host1:29400 false")
	if now := other.leader(); now != next {
		t.Errorf("leader %+v after the first was continued, want still %+v", now, next)
	}
}

// So does one that hangs, until it is well again.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	cfg, hang := l.config(0), make(chan struct{})
	cfg.Beat = func() bool { <-hang; return false }
	leader := startAgent(t, cfg)
	well := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(well) // before Close
	leader.leader()
	other := l.agent(1)
	wait(t, other.Lost(other.leader().Term), "the loss of the leader")
	agree(t, other)
	well()
	agree(t, leader, other)
}

// A leader that yields is followed by another agent, or continues in the same term if there is none.
func TestYield(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	cfg, yield := l.config(0), make(chan bool, 1)
	cfg.Beat = func() bool {
		select {
		case y := <-yield:
			return y
		default:
			return false
		}
	}
	leader := startAgent(t, cfg)
	before := leader.leader()
	yield <- true
	for _, want := range []bool{false, true} {
		if good := wait(t, leader.Lease(), "a lease that is given up, and then another one"); good != want {
			t.Errorf("lease %v, want %v", good, want)
		}
	}
	if now := leader.leader(); now != before {
		t.Errorf("leader %+v after nobody else stood for election, want still %+v", now, before)
	}
	other := l.agent(1)
	if now := other.leader(); now.ID != before.ID {
		t.Errorf("the other has leader %+v, want %+v", now, before)
	}
	mine := leader.Lost(before.Term)
	yield <- true
	if good := wait(t, leader.Lease(), "a lease that is given up"); good {
		t.Error("the lease is good")
	}
	wait(t, mine, "the end of the term")
	if now, _ := agree(t, leader, other); now != other {
		t.Errorf("%+v leads, want the other", now.leader())
	}
}

func TestBridgeKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	leader, others := agree(t, l.agent(0), l.agent(1))
	for _, a := range []*agent{leader, others[0]} {
		before := leader.leader()
		kill(t, a.BridgePID())
		if a == leader {
			wait(t, leader.Lost(before.Term), "the loss of a leadership that no bridge watches")
			wait(t, others[0].Lost(before.Term), "the loss as others see it: its next bridge gives it back")
			leader, others = agree(t, leader, others[0])
		} else if now := a.leader(); now.ID != before.ID || now.Term != before.Term {
			t.Errorf("leader %+v after another's bridge died, want still %+v", now, before)
		}
	}
}

// An agent whose bridge is killed gives up its leadership, and the others hear so also if it leads
// again before they look.
func TestLeadsAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	leader, others := agree(t, l.agent(0), l.agent(1))
	for again := range 3 { // somebody else who has stopped the other's bridge may continue it
		before := leader.leader()
		if err := unix.Kill(others[0].BridgePID(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		kill(t, leader.BridgePID())
		wait(t, leader.Lost(before.Term), "the loss of a leadership that no bridge watches")
		now := leader.leader()
		if err := unix.Kill(others[0].BridgePID(), unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		wait(t, others[0].Lost(before.Term), "the loss of the term before, as the other sees it")
		leader, others = agree(t, leader, others[0])
		if now.Mine && now.Term > before.Term {
			return
		}
		t.Logf("try %d: leader %+v after %+v, want the same agent in a later term", again, now, before)
	}
	t.Error("the agent did not lead again")
}

func TestClose(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	for name, leads := range map[string]bool{"leader": true, "other": false} {
		t.Run(name, func(t *testing.T) {
			run := func(i int) *agent {
				cfg := l.config(i)
				cfg.RunID = "job/" + name
				return startAgent(t, cfg)
			}
			leader, others := agree(t, run(0), run(1), run(2))
			closer, rest := leader, others
			if !leads {
				closer, rest = others[0], []*agent{leader, others[1]}
			}
			closer.closeNow(true)
			for _, a := range rest {
				if leader, err := a.closedLeader(); !errors.Is(err, election.ErrClosed) {
					t.Errorf("Leader of a closed run: got %+v, %v; want ErrClosed", leader, err)
				}
			}
			rest[0].closeNow(true)
			straggler := rest[1]
			// One that comes later is another job's, which a straggler does not close.
			again := run(3)
			if now := again.leader(); !now.Mine {
				t.Errorf("leader of another job with the ID: %+v", now)
			}
			term := again.leader().Term
			straggler.closeNow(true)
			if now := run(4).leader(); now.Term != term {
				t.Errorf("leader %+v after a straggler has ended, want still term %d", now, term)
			}
			again.closeNow(true)
			keys := l.client().ask("keys")
			want := "/muster/job%2F" + name + "/closed"
			if !strings.Contains(keys, want) || strings.Contains(keys, want+"*") || strings.Contains(keys, name+"/leader") {
				t.Errorf("left in etcd: %s; want of this run only %s, with a lease", keys, want)
			}
		})
	}
}

// closedLeader waits for Leader's error.
func (a *agent) closedLeader() (pipe.Leader, error) {
	for {
		changed := a.Changed()
		l, err := a.tryLeader()
		if err != nil {
			return l, err
		}
		select {
		case <-changed:
		case <-time.After(patience):
			return l, nil
		}
	}
}

// A job whose hosts all vanish leaves nothing.
func TestDeadJob(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, "")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ELECTION_TEST_AGENT=1", testproc.Unpaused)
	cfg := l.config(0)
	p := spawn(t, cmd, jsonConfig(&cfg))
	p.expect("leader host0:29400 true")
	client := l.client()
	if keys := client.ask("keys"); keys != "keys /muster/job/leader" {
		t.Errorf("%s; want the leader's, with a lease", keys)
	}
	bridge := childrenOf(t, cmd.Process.Pid)
	freeze(t, cmd.Process.Pid) // or it starts another bridge
	for _, pid := range bridge {
		kill(t, pid) // or it gives the lease back
	}
	start := time.Now()
	p.kill()
	client.ask("gone /muster/job/leader")
	t.Logf("TTL %v: the key was gone %v after the job", cfg.TTL, time.Since(start).Round(100*time.Millisecond))
	if keys := client.ask("keys"); keys != "keys" {
		t.Errorf("left in etcd: %s", keys)
	}
}
