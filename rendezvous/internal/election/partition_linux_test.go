package election_test

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/election"
)

// A cut is a network between an agent and the members that can be cut: proxies
// that keep their connections and pass nothing on.
type cut struct {
	t         *testing.T
	endpoints []string

	mu    sync.Mutex    // guards what follows
	heal  chan struct{} // closed while the network is whole
	conns []net.Conn
}

// newCut puts a proxy in front of each address.
func newCut(t *testing.T, addresses []string) *cut {
	t.Helper()
	c := &cut{t: t, heal: make(chan struct{})}
	close(c.heal)
	t.Cleanup(c.drop)
	for _, to := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		c.endpoints = append(c.endpoints, l.Addr().String())
		go c.accept(l, to)
	}
	return c
}

func (c *cut) accept(l net.Listener, to string) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			c.whole()
			there, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer there.Close()
			c.mu.Lock()
			c.conns = append(c.conns, from, there)
			c.mu.Unlock()
			go c.copy(there, from)
			c.copy(from, there)
		}()
	}
}

// copy passes bytes on while the network is whole.
func (c *cut) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		c.whole()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// whole waits until the network is.
func (c *cut) whole() {
	c.mu.Lock()
	heal := c.heal
	c.mu.Unlock()
	<-heal
}

func (c *cut) off() {
	c.mu.Lock()
	c.heal = make(chan struct{})
	c.mu.Unlock()
}

func (c *cut) on() {
	c.mu.Lock()
	close(c.heal)
	c.mu.Unlock()
}

// drop ends the connections there are, with what they have not passed on.
func (c *cut) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// A leader that is cut off knows that it may not be one any more before another can
// lead, and hears of that one once it can.
func TestPartition(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	network := newCut(t, l.names)
	cfg, theirCfg := l.config(0), l.config(1)
	cfg.Endpoints = network.endpoints
	cfg.TTL *= 2 // it stops a tenth of that before the others can lead
	theirCfg.TTL = cfg.TTL
	leader := startAgent(t, cfg)
	term := leader.leader().Term
	other := startAgent(t, theirCfg)
	if got := other.leader(); got.Term != term || got.Mine {
		t.Fatalf("got leader %+v", got)
	}

	network.off()
	theirs, doubts, start := lostAfter(other, term), make(chan time.Duration, 1), time.Now()
	go func() {
		if good := <-leader.Lease(); !good {
			doubts <- time.Since(start)
		}
	}()
	mine := leader.Lost(term)
	text := leader.waits("no member of etcd answers", network.endpoints[0]+": connected, but no answer")
	t.Logf("told: %s", text)
	doubted, seen := wait(t, doubts, "the leader's doubt"), wait(t, theirs, "the end as the cluster sees it")
	t.Logf("TTL %v: the leader was in doubt after %v, the cluster replaced it after %v", time.Duration(cfg.TTL), doubted.Round(time.Millisecond), seen.Round(time.Millisecond))
	if doubted > time.Duration(cfg.TTL) || doubted >= seen {
		t.Errorf("the leader was in doubt after %v, want before the TTL of %v and before %v", doubted, time.Duration(cfg.TTL), seen)
	}
	if now := other.leader(); !now.Mine {
		t.Errorf("got leader %+v, want the other", now)
	}

	if now := leader.leader(); !now.Mine || now.Term != term {
		t.Errorf("while it is cut off the leader has %+v", now)
	}
	network.on()
	wait(t, mine, "the leader's own end")
	leader.waits("")
	agree(t, leader, other)
	term = other.leader().Term
	other.closeNow(false)
	wait(t, leader.Lost(term), "the other's end")
	if now := leader.leader(); !now.Mine {
		t.Errorf("got leader %+v, want the one that was cut off, as it has a new lease", now)
	}
}

// A leader that is cut off, and leads again after another has led and left, has a new
// term: what it holds is not what the others have by now.
func TestAnotherLedMeanwhile(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, "")
	network := newCut(t, l.names)
	cfg := l.config(0)
	cfg.Endpoints = network.endpoints
	leader := startAgent(t, cfg)
	term := leader.leader().Term
	other := startAgent(t, l.config(1))
	if got := other.leader(); got.Term != term {
		t.Fatalf("got leader %+v", got)
	}
	network.off()
	wait(t, other.Lost(term), "the end as the cluster sees it")
	if now := other.leader(); !now.Mine {
		t.Errorf("got leader %+v, want the other", now)
	}
	other.closeNow(false)
	mine := leader.Lost(term)
	network.on()
	wait(t, mine, "the end of the leader's first term")
	if now := leader.leader(); !now.Mine || now.Term <= term {
		t.Errorf("got leader %+v, want the first one in another term than %d", now, term)
	}
}

// cutFollower starts two agents, of which the one that follows is cut off then.
func cutFollower(t *testing.T) (l *lab, leader, follower *agent, network *cut) {
	t.Helper()
	l = newLab(t, 3, "")
	leader = l.agent(0)
	term := leader.leader().Term
	network = newCut(t, l.names)
	cfg := l.config(1)
	cfg.Endpoints = network.endpoints
	follower = startAgent(t, cfg)
	if got := follower.leader(); got.Term != term {
		t.Fatalf("got leader %+v", got)
	}
	network.off()
	return l, leader, follower, network
}

// An agent that follows and is cut off learns afterwards what it missed.
func TestPartitionOfFollower(t *testing.T) {
	t.Parallel()
	l, leader, follower, network := cutFollower(t)
	term := leader.leader().Term
	leader.closeNow(false)
	next := l.agent(2)
	after := next.leader()
	if !after.Mine {
		t.Fatalf("got leader %+v", after)
	}
	network.on()
	wait(t, follower.Lost(term), "the loss of the leader, learnt late")
	agree(t, follower, next)
}

// The run is closed, and most members with it, before an agent has heard of that: the member that
// is left knows.
func TestClosedWithTheMajority(t *testing.T) {
	t.Parallel()
	l, leader, follower, network := cutFollower(t)
	term := leader.leader().Term
	network.drop()
	next := l.agent(2)
	leader.closeNow(false)
	wait(t, next.Lost(term), "the loss of the leader")
	if after := next.leader(); !after.Mine {
		t.Fatalf("got leader %+v", after)
	}
	next.closeNow(true)
	last := &lab{t: t, names: l.names[:1]}
	if keys := last.client().ask("keys"); keys != "keys /muster/job/closed" {
		t.Errorf("the member that is to stay has %s", keys)
	}
	l.members[1].kill()
	l.members[2].kill()
	network.on()
	if leader, err := follower.closedLeader(); !errors.Is(err, election.ErrClosed) {
		t.Errorf("Leader of a closed run: got %+v, %v; want ErrClosed", leader, err)
	}
	wait(t, follower.Lost(term), "the loss of the leader, as the follower sees it")
}
