package c10d

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
	"time"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/election"
	"github.com/muster-run/muster/rendezvous/room"
	"github.com/muster-run/muster/store/tcpstore"
)

// An Election says which agent holds the rendezvous (see package election), so that it can be another one
// when that is lost.
type Election interface {
	// Leader returns the agent that holds the rendezvous, as soon as there is
	// one. It returns election.ErrClosed once the job has ended.
	Leader(ctx context.Context) (election.Leader, error)
	// Lost returns a channel that is closed when the leader of a term is none any
	// more.
	Lost(term int64) <-chan struct{}
	// Lease tells the leader that its lease has run out, as nobody answers, so that
	// another may lead too (false), or is good again (true).
	Lease() <-chan bool
	// Close makes this agent leave, or with done says that the job has ended.
	Close(ctx context.Context, done bool) error
}

// A leader that could not be reached is tried again after retryLeader, and then
// after twice as long each time up to retryLeaderMost.
const (
	retryLeader     = 10 * time.Millisecond
	retryLeaderMost = time.Second
)

// led is a rendezvous that an elected agent holds.
type led struct {
	held
	leader election.Leader
	lost   <-chan struct{}
}

// listenForElection starts this agent's server, which holds nothing until the agent
// is elected, and enters the election.
func (h *many) listenForElection(ctx context.Context) error {
	if h.election != nil {
		return nil
	}
	cfg := h.cfg.ServerConfig("", 0)
	cfg.KeepAlive, cfg.Guard = h.cfg.Settings.KeepAliveLimit(), h.guard
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		return err
	}
	addrs := electionAddrs(ctx, h.cfg.Electorate)
	h.setNode(addrs[0])
	if h.cfg.LocalAddr != "" || h.cfg.Settings.Bind != "" {
		addrs = []string{h.node.Addr}
	}
	for i, addr := range addrs {
		addrs[i] = net.JoinHostPort(addr, strconv.Itoa(server.Port()))
	}
	elections, err := h.cfg.Elect(ctx, strings.Join(addrs, ","))
	if err != nil {
		server.Close()
		return err
	}
	h.server, h.election = server, elections
	reigning, cancel := context.WithCancel(context.Background())
	h.abdicate = func() { cancel(); h.reigning.Wait() }
	h.reigning.Go(func() { h.reign(reigning) })
	return nil
}

// reign holds the rendezvous whenever this agent is elected, at once, whatever
// else the agent is doing.
func (h *many) reign(ctx context.Context) {
	for {
		leader, err := h.election.Leader(ctx)
		if err != nil {
			return // Next finds out
		}
		lost := h.election.Lost(leader.Term)
		if leader.Mine {
			h.hold(leader.Term)
		}
		for over := false; !over; {
			select {
			case <-lost:
				over = true
			case good := <-h.election.Lease():
				h.suspend(!good)
			case <-ctx.Done():
				return
			}
		}
		if leader.Mine {
			h.letGo()
		}
	}
}

// hold begins to hold the rendezvous for a term, if that has not begun.
func (h *many) hold(term int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rooms != nil && h.term == term {
		return
	}
	h.term = term
	h.rooms = room.NewServer(room.ServerConfig{Mirrors: h.server, Logger: h.log})
	h.server.HandleSession(sessionName, h.rooms.Serve)
}

// suspend is what becomes of the rendezvous while etcd does not answer the agent that
// holds it: its rounds go on. One that is held elsewhere has a later term, for which
// this agent lets go once it hears of it.
func (h *many) suspend(suspended bool) {
	h.mu.Lock()
	rooms := h.rooms
	h.mu.Unlock()
	if rooms == nil {
		return
	}
	if suspended {
		h.log.Warn("the lease of this agent, which holds the rendezvous, has run out, as etcd does not answer; rounds with more than half of the nodes go on",
			"run_id", h.cfg.RunID, "cause", h.cfg.lacking())
	} else {
		h.log.Info("the lease of this agent, which holds the rendezvous, is good again", "run_id", h.cfg.RunID)
	}
	rooms.Suspend(suspended)
}

// letGo ends it: another agent holds the rendezvous from now on.
func (h *many) letGo() {
	h.mu.Lock()
	rooms := h.rooms
	h.rooms = nil
	h.mu.Unlock()
	if rooms != nil {
		h.server.HandleSession(sessionName, nil)
		rooms.Close()
		h.server.Reset()
	}
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
		host, port, err := rendezvous.SplitEndpoint(endpoint, 1)
		if err != nil {
			continue
		}
		ips, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		for _, ip := range ips {
			addr := localAddr(ctx, net.JoinHostPort(ip.Unmap().String(), strconv.Itoa(port)))
			if addr != "" && !net.ParseIP(addr).IsLoopback() && !isOwn(ip.Unmap().String()) && !slices.Contains(addrs, addr) && len(addrs) < mostAddrs {
				addrs = append(addrs, addr)
			}
		}
	}
	if len(addrs) > 0 {
		return addrs
	}
	if len(endpoints) > 0 {
		if addr := localAddr(ctx, endpoints[0]); addr != "" {
			return []string{addr}
		}
	}
	return []string{firstAddr()}
}

// elected finds the agent that holds the rendezvous, which may turn out to be this
// one, and begins a session with it.
func (h *many) elected(ctx context.Context) (carrier, error) {
	expired := &rendezvous.TimeoutError{RunID: h.cfg.RunID, Phase: "find the agent that holds the rendezvous", After: h.cfg.Settings.Join}
	ctx, cancel := context.WithTimeoutCause(ctx, h.cfg.Settings.Join, expired)
	defer cancel()
	c, trouble, err := h.electedUntil(ctx)
	if err == nil || context.Cause(ctx) != error(expired) {
		return c, err
	}
	if expired.Waiting.Note = h.cfg.lacking(); expired.Waiting.Note == "" && trouble != nil {
		expired.Waiting.Note = trouble.Error()
	}
	return nil, expired
}

// electedUntil is elected until ctx ends. Trouble is why an agent that was elected could not
// be reached.
func (h *many) electedUntil(ctx context.Context) (c carrier, trouble, err error) {
	if err := h.listenForElection(ctx); err != nil {
		return nil, nil, err
	}
	told := time.Now()
	for pause := retryLeader; ; pause = min(2*pause, retryLeaderMost) {
		leader, err := h.awaitLeader(ctx)
		if errors.Is(err, election.ErrClosed) {
			return nil, trouble, rendezvous.ErrClosed
		}
		if err != nil {
			return nil, trouble, err
		}
		lost := h.election.Lost(leader.Term)
		c, err := h.follow(ctx, leader, lost)
		if err == nil {
			h.log.Info("rendezvous held by", "run_id", h.cfg.RunID, "leader", leader.Addr, "mine", leader.Mine)
			return &led{held: *c, leader: leader, lost: lost}, nil, nil
		}
		if _, refused := errors.AsType[*room.RefusedError](err); refused || denied(err) || ctx.Err() != nil {
			return nil, trouble, err
		}
		trouble = err
		if deadline, _ := ctx.Deadline(); time.Since(told) >= statusInterval {
			told = time.Now()
			note := fmt.Sprintf("the agent that was elected to hold the rendezvous cannot be reached: %v; giving up in %v", err, time.Until(deadline).Round(time.Second))
			if lacks := h.cfg.lacking(); lacks != "" {
				note = lacks + "; " + note // which is why there is no other
			}
			h.cfg.tellWaiting(rendezvous.Waiting{Note: note})
		}
		h.log.Info("the agent that holds the rendezvous cannot be reached; trying again", "run_id", h.cfg.RunID, "leader", leader.Addr, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-lost:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// denied says whether one end of a connection to the agent that was elected refuses the other.
func denied(err error) bool {
	_, refused := errors.AsType[*auth.RefusedError](err)
	stranger, _ := errors.AsType[*tcpstore.NotStoreError](err)
	return refused || stranger != nil && stranger.Guarded()
}

// awaitLeader waits until an agent is elected, and says every few seconds for what.
func (h *many) awaitLeader(ctx context.Context) (election.Leader, error) {
	for {
		look, cancel := context.WithTimeout(ctx, statusInterval)
		leader, err := h.election.Leader(look)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return leader, err
		}
		deadline, _ := ctx.Deadline()
		h.cfg.tellWaiting(rendezvous.Waiting{Note: fmt.Sprintf("%s; giving up in %v",
			cmp.Or(h.cfg.lacking(), "no agent has been elected yet to hold the rendezvous"), time.Until(deadline).Round(time.Second))})
	}
}

// follow begins a session with a leader. It is given up when the leader is lost.
func (h *many) follow(ctx context.Context, leader election.Leader, lost <-chan struct{}) (*held, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-lost:
			cancel(fmt.Errorf("%s does not hold the rendezvous any more", leader.Addr))
		case <-done:
		}
	}()
	var conn net.Conn
	var err error
	if leader.Mine {
		h.hold(leader.Term)
		h.agents = h.server.Store()
		conn, err = h.server.ServeSession(sessionName)
	} else {
		limit := h.cfg.Settings.KeepAliveLimit()
		cfg := tcpstore.ClientConfig{Addr: leader.Addr, Timeout: limit, KeepAlive: limit, Guard: h.guard, Logger: h.log}
		if conn, err = tcpstore.DialSession(ctx, cfg, sessionName); err == nil {
			if h.client, err = tcpstore.Dial(ctx, cfg); err != nil {
				conn.Close()
			}
			h.agents = h.client
		}
	}
	if err != nil {
		return nil, err
	}
	if h.reach = ""; !leader.Mine {
		h.client.Last() // whether the server is still the same is for the session to say
		if tcp, ok := conn.LocalAddr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			h.reach = tcp.IP.String()
		}
	}
	return h.greet(ctx, conn)
}

// unfollow ends the connections to a rendezvous that is lost.
func (h *many) unfollow(c carrier) {
	c.close()
	if h.client != nil {
		h.client.Close()
		h.client = nil
	}
}

// watch is held.watch, except that the loss of the leader is that of a node.
func (c *led) watch(ctx context.Context, round int, deliver func(rendezvous.Change) bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	gone := make(chan struct{})
	go func() {
		select {
		case <-c.lost:
			close(gone)
			cancel()
		case <-stop:
		}
	}()
	lost := false
	c.held.watch(ctx, round, func(change rendezvous.Change) bool {
		if change.Kind == rendezvous.Disconnected {
			lost = true
			return false
		}
		return deliver(change)
	})
	select {
	case <-gone:
		lost = true
	default:
	}
	if lost {
		node, _, _ := strings.Cut(c.leader.Addr, ",")
		deliver(rendezvous.Change{Kind: rendezvous.NodeLost, Node: node, Rank: -1})
		if c.h.client != nil {
			c.h.client.Close() // calls would wait for a host that may not answer
		}
	}
}
