package server

import (
	"cmp"
	"container/heap"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// never is a join deadline that does not come: nodes watch their own.
var never = time.Unix(1<<40, 0)

// secondChance is how much longer than its limit a node may be silent.
const secondChance = 50 * time.Millisecond

// TorchLook is within what time PyTorch's agents look at the state again: after a
// second, and what it takes.
const TorchLook = 1500 * time.Millisecond

// longest is what may be added to a time without a thought.
const longest = 100 * 365 * 24 * time.Hour

// An ID names one session of a room.
type ID int64

// An Envelope is a message to one session. After one with End the session is over.
type Envelope struct {
	To  ID
	Msg *Message
	End bool
}

// A Rendezvous is the rendezvous of one run ID. It is a pure state machine: it has no
// goroutine, no clock and no connection, and one caller at a time. What it wants
// to say is in Out after every call.
//
// Some nodes have a session; foreign ones (PyTorch's agents) see and change the
// same state through its pickled value.
type Rendezvous struct {
	runID    string
	log      *slog.Logger
	state    *rendezvous.State
	rules    rendezvous.Rules
	limit    time.Duration // a foreign node without a new heartbeat is dead
	sessions map[ID]*session
	nodes    map[rendezvous.Node]*session
	joining  map[*session]struct{}
	silent   expiries
	out      []Envelope

	// Of the last complete round.
	expected rendezvous.Set // nodes with a session that took part and have not gone
	sticky   map[rendezvous.Node]int
	hosts    map[rendezvous.Node]string // names, where the nodes had sessions
	master   *Message                   // where its workers meet, once known
	quiet    time.Time                  // until when its foreign nodes may not have seen it; zero: they have
	waiter   rendezvous.Node            // one that waits
	called   bool                       // its participants were told that nodes wait
	before   *Place                     // a round of a room that is gone, until this one has had its own
	untold   bool                       // nobody was told that it is complete, and all have a session

	counted   *Message // the last status
	countedAt time.Time

	first     int  // round; above 0 where there was a job of the same ID before
	ended     int  // the first round that no job which has ended can have had
	suspended bool // see Suspend
	foreign   rendezvous.Observer
	looked    time.Time // when a last call was last found to be over
	unsettled bool      // joining sessions have to look again
	stirred   bool      // somebody is gone
	dirty     bool      // the state has changed since Text was made
	text      []byte
}

// A session is a node that talks to the room.
type session struct {
	id      ID
	hello   *Message
	node    rendezvous.Node
	joining bool
	hosts   []netip.Prefix // its host's addresses, as it says
	dialled string         // the room's, as it says
	heard   time.Time
	expires time.Time
	doubted bool // it has a second chance
	index   int  // in the heap
}

// NewRendezvous returns one without nodes.
func NewRendezvous(runID string, log *slog.Logger) *Rendezvous {
	return &Rendezvous{
		runID: runID, log: log, state: rendezvous.NewState(),
		sessions: map[ID]*session{}, nodes: map[rendezvous.Node]*session{}, joining: map[*session]struct{}{},
		expected: rendezvous.Set{}, dirty: true,
	}
}

// Out returns what is to be sent since it was called last.
func (r *Rendezvous) Out() []Envelope {
	out := r.out
	r.out = nil
	return out
}

// Empty says whether the room can be forgotten: nobody is in it, and it need not
// remember that it was closed, or which rounds there were.
func (r *Rendezvous) Empty() bool { return r.state.Round == 0 && !r.state.Closed && r.deserted() }

// deserted says whether nobody is in the room, nor was in its last round.
func (r *Rendezvous) deserted() bool {
	return len(r.sessions) == 0 && len(r.state.LastHeartbeats) == 0 && len(r.state.Participants) == 0
}

func (r *Rendezvous) send(s *session, m *Message) { r.out = append(r.out, Envelope{To: s.id, Msg: m}) }

func (r *Rendezvous) refuse(id ID, format string, args ...any) {
	m := &Message{Type: Refused, Error: fmt.Sprintf(format, args...)}
	r.log.Warn("rendezvous: node refused", "run_id", r.runID, "error", m.Error)
	r.out = append(r.out, Envelope{To: id, Msg: m, End: true})
}

// Receive handles a message from a session.
func (r *Rendezvous) Receive(now time.Time, id ID, m *Message) {
	s := r.sessions[id]
	if s == nil {
		r.hello(now, id, m)
		return
	}
	s.heard = now
	switch last := s.hello.Last; {
	case (m.Type == Join || m.Type == Close) && last != nil && last.Round < r.ended:
		r.send(s, &Message{Type: Closed}) // its job has ended
		return
	}
	switch m.Type {
	case Join:
		s.hosts, s.dialled = m.Hosts, m.Addr
		r.join(now, s)
	case Leave:
		r.remove(now, s.node, rendezvous.NodeLeft)
		r.setJoining(s, false)
		r.send(s, &Message{Type: Left})
	case Close:
		r.close(s)
	case Ping:
		r.send(s, &Message{Type: Pong, Sent: m.Sent, Time: now.UnixNano()})
	case Status:
		r.send(s, r.status(now))
	case Master:
		r.setMaster(s, m)
	default:
		r.gone(now, s)
		r.refuse(id, "message of type %.40q: no such type", m.Type)
	}
	r.settle(now)
}

func (r *Rendezvous) hello(now time.Time, id ID, m *Message) {
	switch {
	case m.Type != Hello:
		r.refuse(id, "the first message is %.40q, want %q", m.Type, Hello)
		return
	case m.Version != Version:
		r.refuse(id, "protocol version %d; this server speaks version %d: use the same release of muster on every host", m.Version, Version)
		return
	case !m.sensible():
		r.refuse(id, "incomplete or senseless %s", Hello)
		return
	case r.nodes[*m.Node] != nil && !r.replace(now, r.nodes[*m.Node], m):
		r.refuse(id, "node %s is here already; if two hosts have the same address, give each another --local-addr", m.Node)
		return
	}
	m.LastCall, m.KeepAliveLimit = min(m.LastCall, longest), min(m.KeepAliveLimit, longest)
	if len(r.sessions) == 0 {
		r.rules = rendezvous.Rules{MinNodes: m.MinNodes, MaxNodes: m.MaxNodes, LastCall: m.LastCall, KeepAliveInterval: m.KeepAlive}
		r.limit = m.KeepAliveLimit
	} else if m.MinNodes != r.rules.MinNodes || m.MaxNodes != r.rules.MaxNodes {
		r.refuse(id, "--nnodes is %d:%d on %s and %d:%d on the hosts that came before; give all hosts of run %q the same",
			m.MinNodes, m.MaxNodes, m.Host, r.rules.MinNodes, r.rules.MaxNodes, r.runID)
		return
	}
	s := &session{id: id, hello: m, node: *m.Node, heard: now, expires: now.Add(m.KeepAliveLimit)}
	r.sessions[id], r.nodes[s.node] = s, s
	heap.Push(&r.silent, s)
	r.resume(s)
	r.send(s, &Message{Type: Welcome, Sent: m.Sent, Time: now.UnixNano()})
}

// replace ends the session of a node that has come back with another connection
// before it was missed, and says whether it is the same node.
func (r *Rendezvous) replace(now time.Time, s *session, m *Message) bool {
	if m.Instance == 0 || m.Instance != s.hello.Instance {
		return false
	}
	r.evict(now, s)
	r.settle(now)
	return true
}

// evict drops a node that is not heard of.
func (r *Rendezvous) evict(now time.Time, s *session) {
	r.log.Warn("rendezvous: node has not been heard of", "run_id", r.runID, "node", r.name(s.node), "for", now.Sub(s.heard))
	r.gone(now, s)
	r.out = append(r.out, Envelope{To: s.id, Msg: &Message{Type: Change, Kind: rendezvous.Evicted, Rank: -1}, End: true})
}

// status says how far the next round is. To count takes a while in a big room, where
// many ask: what they hear may be a second old.
func (r *Rendezvous) status(now time.Time) *Message {
	const big = 256
	if r.counted == nil || len(r.sessions) <= big || now.Sub(r.countedAt) >= time.Second {
		w := r.state.Waiting(r.foreign.Clock(now), r.rules, r.sticky, r.name)
		w.Suspended = r.suspended
		r.counted, r.countedAt = &Message{Type: Status, Waiting: &w}, now
	}
	return r.counted
}

// resume goes on, in a room that has had no round yet, where the one before it
// ended: the next round has the next number, nodes keep their ranks, and those who
// took part are expected.
func (r *Rendezvous) resume(s *session) {
	last := s.hello.Last
	switch st := r.state; {
	case last == nil || last.Round < 0 || last.Rank < 0 || last.Rank >= last.WorldSize || st.Complete || r.before == nil && st.Round > 0:
		return
	case r.before == nil || last.Round > r.before.Round:
		r.before = last
		st.Round = last.Round + 1
		r.sticky, r.expected = map[rendezvous.Node]int{}, rendezvous.Set{}
		r.dirty = true
	case last.Round < r.before.Round:
		return
	}
	r.sticky[s.node] = last.Rank
	r.expected.Add(s.node)
}

// join takes the node out of its round and lets it take part in the next.
func (r *Rendezvous) join(now time.Time, s *session) {
	if r.state.Exit(s.node) != rendezvous.Finish {
		r.do(now, s.node, rendezvous.RemoveFromParticipants)
	}
	r.setJoining(s, true)
	r.step(now, s)
}

func (r *Rendezvous) setJoining(s *session, joining bool) {
	if s.joining = joining; joining {
		r.joining[s] = struct{}{}
	} else {
		delete(r.joining, s)
	}
}

// step lets a joining node do what it can.
func (r *Rendezvous) step(now time.Time, s *session) {
	for s.joining {
		switch a := r.decide(now, s.node); a {
		case rendezvous.Sync, rendezvous.KeepAlive:
			return
		case rendezvous.Finish:
			if r.untold {
				return // settle tells all nodes of the round at once
			}
			r.setJoining(s, false)
			r.tellRound(s)
		case rendezvous.FailClosed, rendezvous.FailRedundant:
			r.setJoining(s, false)
			r.send(s, &Message{Type: Closed, Redundant: a == rendezvous.FailRedundant})
		default:
			r.do(now, s.node, a)
		}
	}
}

// decide is State.Join, and what a room can do better because it knows who will
// come back. With foreign nodes it keeps to their rules.
func (r *Rendezvous) decide(now time.Time, me rendezvous.Node) rendezvous.Action {
	st := r.state
	a := st.Join(me, r.rules, r.foreign.Clock(now), never)
	_, participant := st.Participants[me]
	switch {
	case st.Closed:
	case st.Complete && !participant && st.WaitList.Has(me) && len(st.Participants) >= r.rules.MaxNodes:
		return rendezvous.AddToRedundancyList // it was full before its turn
	case r.hasForeign():
	case a == rendezvous.RemoveFromRedundancyList && st.Complete && len(r.expected) >= r.rules.MaxNodes:
		return rendezvous.Sync // those who left the round come back
	case !st.Complete && participant && r.allBack():
		a = rendezvous.MarkComplete
	}
	if a == rendezvous.MarkComplete && r.suspended && !r.most() {
		return rendezvous.Sync
	}
	return a
}

// Suspend says that another room may hold the same rendezvous, as this one's holder
// cannot find out whether it is still elected, or, with false, that it is. Meanwhile
// a round needs more than half of the nodes that there may be, so that no
// two run.
func (r *Rendezvous) Suspend(now time.Time, suspended bool) {
	r.suspended, r.unsettled = suspended, true
	if suspended && r.state.Complete && !r.state.Closed && !r.most() {
		r.tell(rendezvous.Suspended, rendezvous.Node{}, -1)
	}
	r.settle(now)
}

func (r *Rendezvous) most() bool { return 2*len(r.state.Participants) > r.rules.MaxNodes }

// allBack says whether everybody who took part in the last round takes part in
// this one, and nobody else is there, so that there is nobody to wait for.
func (r *Rendezvous) allBack() bool {
	st := r.state
	if len(st.RedundancyList) > 0 && len(st.Participants) < r.rules.MaxNodes {
		return false // spares come first, or they would break the round up
	}
	if r.before != nil && len(r.expected) < r.before.WorldSize-1 {
		return false // of the last round only the node whose room is gone is known to be lost
	}
	if st.Round == 0 || len(st.WaitList) > 0 || len(st.Participants) < r.rules.MinNodes || len(st.Participants) != len(r.expected) {
		return false
	}
	for n := range r.expected {
		if _, ok := st.Participants[n]; !ok {
			return false
		}
	}
	return true
}

func (r *Rendezvous) hasForeign() bool { return r.foreign.Len() > 0 }

// do performs an action for a node and notes what follows from it.
func (r *Rendezvous) do(now time.Time, me rendezvous.Node, a rendezvous.Action) {
	st := r.state
	complete, round, lastCall := st.Complete, st.Round, st.Deadline
	if a == rendezvous.AddToRedundancyList {
		delete(st.WaitList, me)
	}
	st.Do(a, me, r.rules, r.foreign.Clock(now))
	r.holdOpen(now, lastCall)
	r.dirty = true
	if s := r.nodes[me]; s != nil && (a == rendezvous.AddToRedundancyList || a == rendezvous.RemoveFromRedundancyList) {
		r.send(s, &Message{Type: Spare, Redundant: a == rendezvous.AddToRedundancyList})
	}
	switch {
	case st.Complete && !complete:
		r.completed(now)
	case st.Round != round:
		r.unsettled = true
	case a == rendezvous.AddToWaitList && st.Complete:
		r.call(now, me)
	case a == rendezvous.RemoveFromParticipants:
		r.stirred = true
	}
}

// completed gives out the ranks of a round.
func (r *Rendezvous) completed(now time.Time) {
	st := r.state
	r.expected, r.hosts = rendezvous.Set{}, map[rendezvous.Node]string{}
	for n := range st.Participants {
		if s := r.nodes[n]; s != nil {
			r.expected.Add(n)
			r.hosts[n] = s.hello.Host
		}
	}
	r.untold = len(r.expected) == len(st.Participants)
	if r.untold {
		st.AssignRanks(r.sticky)
	}
	r.sticky = maps.Clone(st.Participants)
	r.makeSpares()
	r.master, r.called, r.before, r.unsettled = nil, false, nil, true
	r.quiet = time.Time{}
	if !r.untold || len(st.WaitList) > 0 { // foreign nodes that were too slow for the last call
		r.quiet = now.Add(TorchLook)
	}
	r.log.Info("rendezvous: round complete", "run_id", r.runID, "round", st.Round, "nodes", len(st.Participants))
}

// makeSpares has foreign nodes that wait be spares when a round is full. By their
// own rules they would go on waiting, for which all others restart, and again
// after the next round.
func (r *Rendezvous) makeSpares() {
	st := r.state
	if max := r.rules.MaxNodes; max == 0 || len(st.Participants) < max {
		return
	}
	for n := range st.WaitList {
		if r.nodes[n] == nil {
			delete(st.WaitList, n)
			st.RedundancyList.Add(n)
			r.dirty = true
		}
	}
}

// tellAll tells all nodes of a new round, none of them foreign, with the ranks of
// their workers.
func (r *Rendezvous) tellAll() {
	r.untold = false
	st := r.state
	byRank := make([]*session, len(st.Participants))
	for node, rank := range st.Participants {
		byRank[rank] = r.nodes[node]
	}
	world, roles := 0, map[string]int{}
	all := make([]rendezvous.Ranks, len(byRank))
	for i, s := range byRank {
		all[i].Base, all[i].RoleBase = world, roles[s.hello.Role]
		world += s.hello.LocalWorldSize
		roles[s.hello.Role] += s.hello.LocalWorldSize
	}
	for i, s := range byRank {
		all[i].WorldSize, all[i].RoleWorldSize = world, roles[s.hello.Role]
		r.setJoining(s, false)
		m := &Message{Type: Round, Round: st.Round, Rank: i, WorldSize: len(byRank), Ranks: &all[i], Job: r.first}
		if i == 0 {
			m.Addr = r.reached(s)
			m.NumHosts = r.sendHosts(s, byRank)
		}
		r.send(s, m)
	}
}

// reached is the address of a node's host by which most of the others have reached
// it: those on other hosts, if the room is on the node's.
func (r *Rendezvous) reached(s *session) (addr string) {
	if !s.hello.near {
		return ""
	}
	count := map[string]int{}
	for _, other := range r.participants() {
		if by := other.hello.reached; by != "" {
			if count[by]++; count[by] > count[addr] {
				addr = by
			}
		}
	}
	return addr
}

// tellRound tells a node its place in a round that foreign nodes take part in.
func (r *Rendezvous) tellRound(s *session) {
	st := r.state
	m := &Message{Type: Round, Round: st.Round, Rank: st.Participants[s.node], WorldSize: len(st.Participants), Foreign: true, Job: r.first}
	for n, rank := range st.Participants {
		if rank == 0 && r.nodes[n] == nil {
			m.Published = true
		}
	}
	if m.Rank == 0 {
		m.Addr = r.reached(s)
	}
	r.send(s, m)
	if r.master != nil && m.Rank != 0 {
		r.send(s, r.master)
	}
}

// setMaster takes from rank 0 where the workers meet and passes it on.
func (r *Rendezvous) setMaster(s *session, m *Message) {
	rank, participant := r.state.Participants[s.node]
	if !participant || rank != 0 || !r.state.Complete || m.Round != r.state.Round || len(m.Addr) > mostName {
		return // of a round that is over, or no address
	}
	r.master = &Message{Type: Master, Round: m.Round, Addr: m.Addr, Port: m.Port}
	for _, other := range r.participants() {
		if other != s && !other.joining {
			r.send(other, r.master)
		}
	}
}

// participants returns the sessions of the round's nodes, in order of session.
func (r *Rendezvous) participants() []*session {
	list := make([]*session, 0, len(r.state.Participants))
	for n := range r.state.Participants {
		if s := r.nodes[n]; s != nil {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.id - b.id) })
	return list
}

// tell tells the nodes that are in the complete round of a change.
func (r *Rendezvous) tell(kind rendezvous.ChangeKind, node rendezvous.Node, rank int) {
	m := &Message{Type: Change, Kind: kind, Round: r.state.Round, Host: r.name(node), Rank: rank, Foreign: r.nodes[node] == nil}
	for _, s := range r.participants() {
		if s.node != node {
			r.send(s, m)
		}
	}
}

// name is a node's host name, also if it has gone since the last round, or its address.
func (r *Rendezvous) name(n rendezvous.Node) string {
	name := r.hosts[n]
	if s := r.nodes[n]; s != nil {
		name = s.hello.Host
	}
	name = cmp.Or(name, n.Addr)
	return name[:min(len(name), mostName)]
}

// call tells the round's nodes, once, that others wait. If foreign nodes take part,
// it lets them first see the round as it is: they count the participants when they
// look, and would start workers of a smaller world than the others.
func (r *Rendezvous) call(now time.Time, waiter rendezvous.Node) {
	if r.untold {
		r.tellAll() // or they would not know which round it is about
	}
	switch {
	case r.called:
	case now.Before(r.quiet):
		r.waiter = waiter
	default:
		r.called, r.quiet = true, time.Time{}
		r.tell(rendezvous.NodesWaiting, waiter, -1)
	}
}

// callLate tells of nodes that have waited since the round began.
func (r *Rendezvous) callLate(now time.Time) {
	if r.quiet.IsZero() || now.Before(r.quiet) {
		return
	}
	r.quiet = time.Time{}
	st := r.state
	if !st.Complete || st.Closed || len(st.WaitList) == 0 {
		return
	}
	if !st.WaitList.Has(r.waiter) {
		r.waiter = slices.MinFunc(slices.Collect(maps.Keys(st.WaitList)), rendezvous.Node.Compare)
	}
	r.call(now, r.waiter)
}

// remove takes a node out of everything, and tells the others of its round why.
func (r *Rendezvous) remove(now time.Time, n rendezvous.Node, kind rendezvous.ChangeKind) {
	st := r.state
	rank, participant := st.Participants[n]
	complete, round := st.Complete, st.Round
	r.dirty = true
	st.Drop(r.rules, n)
	delete(r.expected, n)
	r.foreign.Forget(n)
	if participant && complete && !st.Closed {
		r.tell(kind, n, rank)
	}
	r.stirred, r.unsettled = true, r.unsettled || st.Round != round
}

// close makes this the last round.
func (r *Rendezvous) close(by *session) {
	if !r.state.Closed {
		r.state.Closed = true
		r.dirty, r.unsettled = true, true
		for _, s := range r.participants() {
			if s != by && !s.joining {
				r.send(s, &Message{Type: Closed})
			}
		}
	}
	r.setJoining(by, false)
	r.send(by, &Message{Type: Closed})
}

// Gone handles the end of a session's connection.
func (r *Rendezvous) Gone(now time.Time, id ID) {
	if s := r.sessions[id]; s != nil {
		r.gone(now, s)
		r.settle(now)
	}
}

func (r *Rendezvous) gone(now time.Time, s *session) {
	r.remove(now, s.node, rendezvous.NodeLost)
	heap.Remove(&r.silent, s.index)
	r.setJoining(s, false)
	delete(r.sessions, s.id)
	delete(r.nodes, s.node)
}

// Next returns when Advance is due; zero for never.
func (r *Rendezvous) Next() time.Time {
	next := time.Time{}
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if len(r.silent) > 0 {
		earlier(r.silent[0].expires)
	}
	if lastCall := r.state.Deadline; !r.state.Complete && !lastCall.IsZero() && lastCall.After(r.looked) {
		earlier(r.foreign.When(lastCall).Add(1))
	}
	if at := r.foreign.Next(r.limit); !at.IsZero() {
		earlier(at)
	}
	if !r.quiet.IsZero() {
		earlier(r.quiet)
	}
	return next
}

// Advance does what time alone makes necessary.
func (r *Rendezvous) Advance(now time.Time) {
	for len(r.silent) > 0 && !now.Before(r.silent[0].expires) {
		s := r.silent[0]
		if expires, again := r.patience(now, s); again {
			s.expires = expires
			heap.Fix(&r.silent, 0)
			continue
		}
		r.evict(now, s)
	}
	r.dropForeign(now)
	r.callLate(now)
	if !r.state.Complete && !r.state.Deadline.IsZero() && r.foreign.Clock(now).After(r.state.Deadline) {
		r.looked, r.unsettled = r.foreign.Clock(now), true
	}
	r.settle(now)
}

// patience says until when a session that was due at its expiry may stay. One that
// has been silent for its limit has a second chance: where this process or its
// host was stopped for a while, what the nodes have said is yet to be read.
func (r *Rendezvous) patience(now time.Time, s *session) (until time.Time, again bool) {
	if until = s.heard.Add(s.hello.KeepAliveLimit); now.Before(until) {
		s.doubted = false
		return until, true
	}
	if late := now.Sub(s.expires) > secondChance/2; s.doubted && !late {
		return until, false
	}
	s.doubted = true
	return now.Add(secondChance), true
}

// settle lets joining nodes look again after a change that concerns them.
func (r *Rendezvous) settle(now time.Time) {
	for r.unsettled || r.stirred {
		list := r.concerned()
		r.unsettled, r.stirred = false, false
		if r.untold {
			r.tellAll()
		}
		for _, s := range list {
			r.step(now, s)
		}
	}
}

// concerned returns the joining nodes that have to look again: first those who were
// in the last round, in order of rank, then the others. If only somebody is
// gone, these are spares, should there be room, and one participant that can close
// the round; in a big room it would take too long if all did.
func (r *Rendezvous) concerned() []*session {
	st := r.state
	var list []*session
	switch room := len(st.Participants) < r.rules.MaxNodes; {
	case r.unsettled:
		list = make([]*session, 0, len(r.joining))
		for s := range r.joining {
			list = append(list, s)
		}
	case room && (!st.Complete || len(r.expected) < r.rules.MaxNodes || r.hasForeign()):
		for n := range st.RedundancyList {
			if s := r.nodes[n]; s != nil && s.joining {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, func(a, b *session) int {
		if x, y := r.turn(a), r.turn(b); x != y {
			return x - y
		}
		return int(a.id - b.id)
	})
	if r.unsettled || st.Complete {
		return list
	}
	for n := range st.Participants {
		if s := r.nodes[n]; s != nil {
			return append(list, s)
		}
	}
	return list
}

func (r *Rendezvous) turn(s *session) int {
	if rank, ok := r.sticky[s.node]; ok && r.expected.Has(s.node) {
		return rank
	}
	return len(r.sticky)
}

// expiries is a heap of sessions by when they count as dead if they stay silent.
type expiries []*session

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].expires.Before(e[j].expires) }
func (e expiries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}
func (e *expiries) Push(x any) {
	s := x.(*session)
	s.index = len(*e)
	*e = append(*e, s)
}
func (e *expiries) Pop() any {
	old := *e
	s := old[len(old)-1]
	*e = old[:len(old)-1]
	return s
}
