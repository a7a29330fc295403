package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/election"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/store/tcpstore"
)

// An Election says which agent holds the rendezvous, so that it can be another one when
// that is lost. See election.Election.
type Election interface {
	Leader(ctx context.Context) (pipe.Leader, error)
	Lost(term int64) <-chan struct{}
	Lease() <-chan bool
	Close(ctx context.Context, done bool) error
}

// A leader that could not be reached is tried again after retryLeader, and then
// after twice as long each time up to retryLeaderMost.
const (
	retryLeader     = 10 * time.Millisecond
	retryLeaderMost = time.Second
)

// elected is the endpoint of a job whose agents elect the one that holds the rendezvous.
//
// The first connect starts this agent's server, which holds nothing yet, and a campaign:
// a goroutine that holds the rendezvous whenever this agent is elected, at once, whatever
// else the agent is doing. The campaign and connect share what mu guards.
type elected struct {
	n          *Node
	electorate []string // addresses by which the node finds out its own
	elect      func(ctx context.Context, addr string) (Election, error)
	needs      atomic.Pointer[string] // what the election waits for

	entered  bool // enter has set the next three
	store    *tcpstore.Server
	election Election
	resign   func() // ends the campaign

	leader  pipe.Leader    // of the last connect
	minding sync.WaitGroup // of sessions, until they or their leaders are lost

	mu   sync.Mutex // guards the rest
	rdzv *server.Server
	term int64 // for which rdzv was made; 0: this agent does not hold the rendezvous
}

// Elected returns a node of a job under an election. how says how to elect, once, but for what
// cfg says.
func Elected(backend string, cfg rendezvous.Spec, electorate []string,
	how func(context.Context) election.Config) (rendezvous.Handler, error) {
	e := &elected{electorate: electorate}
	e.elect = func(ctx context.Context, addr string) (Election, error) {
		want := how(ctx)
		want.RunID, want.Addr, want.TTL, want.Logger = cfg.RunID, addr, pipe.Millis(cfg.Settings.KeepAliveLimit()), cfg.Logger
		want.Beat = e.beat
		want.OnWaiting = e.lacks
		return election.Start(ctx, want)
	}
	return e.node(backend, cfg)
}

// node returns a node with this endpoint.
func (e *elected) node(backend string, cfg rendezvous.Spec) (rendezvous.Handler, error) {
	n, err := ofMany(backend, cfg)
	if err != nil {
		return nil, err
	}
	e.needs.CompareAndSwap(nil, new(string))
	n.endpoint, e.n = e, n
	return n, nil
}

// lacks takes what the election waits for, "" for nothing. While this node looks for the one that is elected,
// awaitLeader tells of it.
func (e *elected) lacks(text string) {
	e.needs.Store(&text)
	e.n.mu.Lock()
	found := e.n.protocol != nil
	e.n.mu.Unlock()
	if found && text != "" {
		e.n.log.Warn("if the agent that holds the rendezvous is lost now, perhaps no other can be elected",
			"run_id", e.n.cfg.RunID, "cause", text)
	}
}

func (e *elected) String() string      { return strings.Join(e.electorate, ",") }
func (e *elected) again(protocol) bool { return true }
func (e *elected) lacking() string     { return *e.needs.Load() }

func (e *elected) lost(err error) error {
	return lostError{e.n.connectionError(fmt.Errorf("lost the agent that held the rendezvous: %w", err))}
}

// loss is that of a node: another agent will be elected.
func (e *elected) loss(error) rendezvous.Change {
	host, _, _ := strings.Cut(e.leader.Addr, ",")
	return rendezvous.Change{Kind: rendezvous.NodeLost, Node: host, Rank: -1}
}

// enter starts this agent's server and its campaign.
func (e *elected) enter(ctx context.Context) error {
	if e.entered {
		return nil
	}
	s, err := tcpstore.Listen(e.n.agentsConfig("", 0))
	if err != nil {
		return err
	}
	addrs := electionAddrs(ctx, e.electorate)
	e.n.setNode(addrs[0])
	if e.n.cfg.LocalAddr != "" || e.n.cfg.Settings.Bind != "" {
		addrs = []string{e.n.link.me.Addr}
	}
	for i, addr := range addrs {
		addrs[i] = net.JoinHostPort(addr, strconv.Itoa(s.Port()))
	}
	election, err := e.elect(ctx, strings.Join(addrs, ","))
	if err != nil {
		s.Close()
		return err
	}
	e.entered, e.store, e.election = true, s, election
	campaign, cancel := context.WithCancel(context.Background())
	var campaigning sync.WaitGroup
	campaigning.Go(func() { e.campaign(campaign) })
	e.resign = func() { cancel(); campaigning.Wait() }
	return nil
}

// campaign holds the rendezvous for the terms for which this agent is elected.
func (e *elected) campaign(ctx context.Context) {
	for {
		leader, err := e.election.Leader(ctx)
		if err != nil {
			return // Next gets the same error
		}
		lost := e.election.Lost(leader.Term)
		if leader.Mine {
			e.hold(leader.Term, lost)
		}
		for over := false; !over; {
			select {
			case <-lost:
				over = true
			case good := <-e.election.Lease():
				e.suspend(!good)
			case <-ctx.Done():
				return
			}
		}
		if leader.Mine {
			e.letGo(leader.Term)
		}
	}
}

// hold begins to hold the rendezvous for a term, if that has not begun: campaign and connect both learn of
// the term, in any order, and connect needs the rendezvous at once. A term that is lost does not begin: campaign
// may have let go of it.
func (e *elected) hold(term int64, lost <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-lost:
	default:
		if e.term != term {
			e.drop()
			e.term, e.rdzv = term, Serve(e.store, e.n.log, e.n.cfg.RunID)
		}
	}
}

// letGo ends a term: another agent holds the rendezvous from now on.
func (e *elected) letGo(term int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == term {
		e.drop()
	}
}

// drop ends the rendezvous that this agent holds, if it does. The caller holds mu.
func (e *elected) drop() {
	if e.term == 0 {
		return
	}
	e.term = 0
	// In this order: no session begins in a rendezvous that is closed, and none is left when the store is emptied.
	e.store.HandleSession(callName, nil)
	e.store.HandleSession(storeName, nil)
	e.store.HandleSession(sessionName, nil)
	e.rdzv.Close()
	e.store.Reset()
}

// held returns the rendezvous that this agent holds, if it does.
func (e *elected) held() (rdzv *server.Server, held bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rdzv, e.term != 0
}

func (e *elected) holds() bool { _, held := e.held(); return held }

// beat returns if this agent is well, and reports whether it may be cut off: one that most nodes do not
// reach any more is not the one to hold the rendezvous.
func (e *elected) beat() (cutOff bool) {
	rdzv, held := e.held()
	if cutOff = held && rdzv.Beat(); cutOff {
		e.n.log.Warn("most nodes no longer reach this agent, which holds the rendezvous; if one of them reaches etcd, that one takes over",
			"run_id", e.n.cfg.RunID)
	}
	return cutOff
}

// suspend is what becomes of the rendezvous while etcd does not answer the agent that
// holds it: its rounds continue. One that is held elsewhere has a later term, for which
// this agent lets go once it hears of it.
func (e *elected) suspend(suspended bool) {
	rdzv, held := e.held()
	if !held {
		return
	}
	if suspended {
		e.n.log.Warn(
			"the lease of this agent, which holds the rendezvous, has expired or was given up; a round continues if too few nodes are left for another",
			"run_id", e.n.cfg.RunID, "cause", e.lacking())
	} else {
		e.n.log.Info("the lease of this agent, which holds the rendezvous, is good again", "run_id", e.n.cfg.RunID)
	}
	rdzv.Suspend(suspended)
}

func (e *elected) close(ctx context.Context, all bool) error {
	if !e.entered {
		return nil
	}
	if rdzv, held := e.held(); held {
		e.n.letGo(ctx, rdzv, all)
	}
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout) // the others may have had all of ctx
	defer cancel()
	err := errors.Join(e.store.Close(), e.election.Close(soon, all))
	e.resign()
	e.minding.Wait()
	return err
}

// connect finds the agent that holds the rendezvous, which may turn out to be this
// one, and begins a session with it.
func (e *elected) connect(ctx context.Context) (protocol, error) {
	n := e.n
	expired := &rendezvous.TimeoutError{RunID: n.cfg.RunID, Phase: "find the agent that holds the rendezvous",
		After: n.cfg.Settings.Join}
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Settings.Join, expired)
	defer cancel()
	s, trouble, err := e.find(ctx)
	if errors.Is(err, rendezvous.ErrClosed) && n.last == nil && !n.spare {
		// The job that has ended is one before this node's, which elects anew.
		if err = e.close(ctx, false); err != nil {
			return nil, err
		}
		e.entered = false
		s, trouble, err = e.find(ctx)
	}
	switch {
	case err == nil:
		return s, nil
	case context.Cause(ctx) != error(expired):
		return nil, err
	}
	if expired.Waiting.Note = e.lacking(); expired.Waiting.Note == "" && trouble != nil {
		expired.Waiting.Note = trouble.Error()
	}
	return nil, expired
}

// find is connect until ctx ends. Trouble is why an agent that was elected could not
// be reached.
func (e *elected) find(ctx context.Context) (s *session, trouble, err error) {
	n := e.n
	if err := e.enter(ctx); err != nil {
		return nil, nil, err
	}
	told := time.Now()
	for pause := retryLeader; ; pause = min(2*pause, retryLeaderMost) {
		leader, err := e.awaitLeader(ctx)
		if errors.Is(err, election.ErrClosed) {
			return nil, trouble, rendezvous.ErrClosed
		}
		if err != nil {
			return nil, trouble, err
		}
		lost := e.election.Lost(leader.Term)
		s, err := e.follow(ctx, leader, lost)
		if err == nil {
			n.log.Info("rendezvous held by", "run_id", n.cfg.RunID, "leader", leader.Addr, "mine", leader.Mine)
			return s, nil, nil
		}
		refused, _ := errors.AsType[*server.RefusedError](err)
		if refused != nil && !refused.Over && !refused.Taken || denied(err) || ctx.Err() != nil {
			return nil, trouble, err
		}
		trouble = err
		if deadline, _ := ctx.Deadline(); time.Since(told) >= waitingInterval {
			told = time.Now()
			note := fmt.Sprintf("the agent that was elected to hold the rendezvous cannot be reached: %v; giving up in %v",
				err, time.Until(deadline).Round(time.Second))
			if needs := e.lacking(); needs != "" {
				note = needs + "; " + note // which is why there is no other
			}
			n.cfg.OnWaiting(rendezvous.Waiting{Note: note})
		}
		n.log.Info("the agent that holds the rendezvous cannot be reached; trying again", "run_id", n.cfg.RunID,
			"leader", leader.Addr, "error", err)
		select {
		case <-lost:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// denied reports whether one end of a connection to the agent that was elected refuses the other.
func denied(err error) bool {
	_, refused := errors.AsType[*auth.RefusedError](err)
	stranger, _ := errors.AsType[*tcpstore.NotStoreError](err)
	return refused || stranger != nil && stranger.Guarded()
}

// awaitLeader waits until an agent is elected, and says every few seconds for what.
func (e *elected) awaitLeader(ctx context.Context) (pipe.Leader, error) {
	for {
		look, cancel := context.WithTimeout(ctx, waitingInterval)
		leader, err := e.election.Leader(look)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return leader, err
		}
		deadline, _ := ctx.Deadline()
		e.n.cfg.OnWaiting(rendezvous.Waiting{Note: fmt.Sprintf("%s; giving up in %v",
			cmp.Or(e.lacking(), "no agent has been elected yet to hold the rendezvous"),
			time.Until(deadline).Round(time.Second))})
	}
}

// follow begins a session with a leader, which ends when the leader is lost.
func (e *elected) follow(ctx context.Context, leader pipe.Leader, lost <-chan struct{}) (*session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	greeted := make(chan *session, 1)
	e.minding.Go(func() {
		var s *session
		select {
		case s = <-greeted:
		case <-lost:
			cancel(fmt.Errorf("%s does not hold the rendezvous any more", leader.Addr))
			s = <-greeted
		}
		if s != nil {
			select {
			case <-lost:
			case <-s.conn.Done():
			}
			s.close()
		}
	})
	s, err := e.greet(ctx, leader, lost)
	greeted <- s // nil after an error, or the goroutine would not end
	return s, err
}

func (e *elected) greet(ctx context.Context, leader pipe.Leader, lost <-chan struct{}) (*session, error) {
	n, link := e.n, &e.n.link
	e.leader, link.addr = leader, link.me.Addr
	if leader.Mine {
		e.hold(leader.Term, lost)
		link.agents, link.hangUp = e.store.Store(), func() {}
		return n.greetOwn(ctx, e.store)
	}
	limit := n.cfg.Settings.KeepAliveLimit()
	cfg := tcpstore.ClientConfig{Addr: leader.Addr, Timeout: limit, KeepAlive: limit, Guard: n.guard, Logger: n.log}
	conn, err := tcpstore.DialSession(ctx, cfg, sessionName)
	if err != nil {
		return nil, err
	}
	client, err := n.dial(ctx, cfg)
	if err != nil {
		conn.Close()
		return nil, err
	}
	client.Last() // whether the server is still the same is for the session to say
	if tcp, ok := conn.LocalAddr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && n.cfg.LocalAddr == "" &&
		n.cfg.Settings.Bind == "" {
		link.addr = tcp.IP.String()
	}
	return n.greet(ctx, conn, dialerTo(conn, cfg))
}

// mostAddrs is how many addresses an agent names that may be elected.
const mostAddrs = 4

// electionAddrs are the addresses, one or more, of the interfaces that reach
// endpoints elsewhere. There are several where names have IPv4 and IPv6 addresses, of
// which one kind may not work between the hosts.
func electionAddrs(ctx context.Context, endpoints []string) (addrs []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, endpoint := range endpoints {
		if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
			endpoint = u.Host
		}
		host, port, err := hostport.Split(endpoint, 1)
		if err != nil {
			continue
		}
		ips, _ := hostport.Lookup(ctx, host)
		for _, ip := range ips {
			addr := localAddr(ctx, net.JoinHostPort(ip.String(), strconv.Itoa(port)))
			if addr != "" && !net.ParseIP(addr).IsLoopback() && !hostport.IsLocal(ip.String()) &&
				!slices.Contains(addrs, addr) && len(addrs) < mostAddrs {
				addrs = append(addrs, addr)
			}
		}
	}
	switch {
	case len(addrs) > 0:
		return addrs
	case len(endpoints) > 0:
		return []string{localAddr(ctx, endpoints[0])}
	}
	return []string{firstAddr()}
}
