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

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/state"
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

// An ID names one session of a rendezvous.
type ID int64

// An Envelope is a message to one session. After one with End the session is over.
type Envelope struct {
	To  ID
	Msg *Message
	End bool
}

// A Rendezvous is that of one run ID. It is a pure state machine: it has no
// goroutine, no clock and no connection, and one caller at a time. What it wants
// to say is in Out after every call.
//
// Some nodes have a session; torch nodes (agents of PyTorch) see and change the
// same state through its pickled value.
//
// Where a round is (st is state):
//
//	joining   !st.Complete  Nodes become participants. Once there are MinNodes a last call
//	                        runs, until st.Deadline. The round is complete when that is over,
//	                        when there are MaxNodes, or when all come back who were in the
//	                        last one (allBack).
//	complete  st.Complete   Participants have their ranks. Who joins now waits (st.WaitList)
//	                        or is a spare (st.RedundancyList). When the last participant has
//	                        left, st.Round goes up, and the next round is joining.
//	closed    st.Closed     No round follows, whatever the state was. Who joins is told so.
//
// While a round is complete, last says more of it, and torch whether torch nodes know it:
//
//	last.unannounced      All participants have a session, and none has been told of the
//	                      round: tellAll tells them together, with their workers' ranks. In a
//	                      round with torch nodes step tells each one (tellRound).
//	torch.unaware         Until then torch nodes may not have seen the round. Nobody is told
//	                      before that others wait for the next one (call, callLate).
//	last.toldWaiting      Its nodes were told so, once.
//	last.expected         Its participants with a session that have not left or been lost
//	                      since. The next round need not wait longer than for them.
//
// What changes the state raises recheck, and settle then has joining nodes decide again,
// each by step: all of them (recheckAll), or, in a big rendezvous, where one node is gone,
// only those that its going can concern (recheckGap, see concerned).
//
// What holds between two calls:
//   - sessions has each session in byID, of and expiries.
//   - A node with a session that takes part in a complete round and is not joining was
//     told of the round.
//   - recheck is recheckNone and last.unannounced is false: settle sees to that at the end
//     of each call.
//   - torch.stale is set if state is not what Text or Adopt had last.
type Rendezvous struct {
	runID     string
	log       *slog.Logger
	state     *state.State
	rules     state.Rules         // those of the first node
	suspended bool                // see Suspend
	endsWith  string              // see Server.EndsWith
	outcome   *rendezvous.Outcome // of a closed one; nil if nobody has said
	out       []Envelope

	sessions sessions
	presence presence
	recheck  recheck // which of the joining have to decide again

	live bool // see rendezvous.Spec

	torch        torchNodes
	last         lastRound
	history      history
	lastCallOver time.Time // when a last call was last found to be over
	progress     progress

	badState, refused, unheard admit.Tally // what strangers may cause as often as they like
}

// sessions are those of the nodes that have one; add and drop keep them together.
type sessions struct {
	byID     map[ID]*session
	of       map[state.Node]*session
	expiries expiries
	joining  map[*session]struct{} // have said Join and have not heard Round, Closed or Left since
}

func (l *sessions) add(s *session) {
	l.byID[s.id], l.of[s.node] = s, s
	heap.Push(&l.expiries, s)
}

func (l *sessions) drop(s *session) {
	heap.Remove(&l.expiries, s.index)
	l.setJoining(s, false)
	delete(l.byID, s.id)
	delete(l.of, s.node)
}

func (l *sessions) setJoining(s *session, joining bool) {
	if s.joining = joining; joining {
		l.joining[s] = struct{}{}
	} else {
		delete(l.joining, s)
	}
}

// presence compares the nodes that are here with those that were, since the last round.
type presence struct {
	most   int       // how many were here at once; those before Suspend count
	silent state.Set // those that had not been heard of when they were gone, and are not back
	cutOff bool      // they were more than the others, see Server.Beat
}

// torchNodes is what a rendezvous knows of the torch nodes, whom it observes, and what
// they see of it.
type torchNodes struct {
	state.Observer
	silence time.Duration // without a new heartbeat for so long one is dead
	unaware time.Time     // see Rendezvous; zero: all have seen the last complete round
	waiting state.Node    // one that waits for the next, to be told of after that
	text    []byte        // the state's pickled value, as Text or Adopt had it last
	stale   bool          // the state is another one by now
	dropped int           // how many have died
}

// any reports whether there are torch nodes.
func (t *torchNodes) any() bool { return t.Len() > 0 }

// A lastRound is the last complete round. The next one that is complete replaces it.
type lastRound struct {
	expected     state.Set             // nodes with a session that took part and have not gone
	ranks        map[state.Node]int    // of all nodes that took part; they keep them
	hostNames    map[state.Node]string // of those with a session
	left         state.Set             // nodes that have ended their part, and are not just lost
	meetingPoint *Message              // where its workers meet, once known
	unannounced  bool                  // see Rendezvous
	toldWaiting  bool                  // its nodes were told that others wait for the next
	twins        string                // what warnOfTwins said last
	several      string                // hosts of several agents, as spares hear
}

// expectedIn reports whether all who are expected are among participants.
func (l *lastRound) expectedIn(participants map[state.Node]int) bool {
	for n := range l.expected {
		if _, ok := participants[n]; !ok {
			return false
		}
	}
	return true
}

// leaves remembers that a node of the last round ends its part.
func (l *lastRound) leaves(n state.Node) {
	if l.hostNames[n] != "" {
		l.left.Add(n)
	}
}

// turn orders nodes: those that are expected back by their rank, then the others.
func (l *lastRound) turn(n state.Node) int {
	if rank, ok := l.ranks[n]; ok && l.expected.Has(n) {
		return rank
	}
	return len(l.ranks)
}

// history is what was before this rendezvous, under the same run ID.
type history struct {
	lost  *Place // the last round under a holder that is lost, until there is one here
	used  int    // restarts of the job until then
	first int    // the first round of this job; above 0 where another job was before it
	ended int    // the first round that no job which has ended can have had
	// spares is until when spares of the lost holder leave the places to those who were in the
	// round; zero: they do not. waited says that there was such a time.
	spares time.Time
	waited bool
}

// progress is what was said last about the next round.
type progress struct {
	said *Message
	at   time.Time
}

// recheck says which joining sessions have to decide again.
type recheck uint8

const (
	recheckNone recheck = iota
	recheckGap          // somebody is gone: those who may fill the gap, or complete the round
	recheckAll
)

func (r *Rendezvous) raise(to recheck) { r.recheck = max(r.recheck, to) }

// A session is a node that talks to the rendezvous.
type session struct {
	id      ID
	hello   *Message
	node    state.Node
	joining bool
	hosts   []netip.Prefix // its host's addresses, as it says
	dialed  string         // the server's, as it says
	heard   time.Time
	expires time.Time
	doubted bool // it has a second chance
	index   int  // in the heap
	// rival is the Instance of another process that wanted to be this node, at contested.
	rival     uint64
	contested time.Time
}

// patience says until when the session, which was due at its expiry, may stay. One that
// has been silent for its limit has a second chance: where this process or its
// host was stopped for a while, what the nodes have said is yet to be read.
func (s *session) patience(now time.Time) (until time.Time, again bool) {
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

// NewRendezvous returns one without nodes.
func NewRendezvous(runID string, log *slog.Logger) *Rendezvous {
	return &Rendezvous{
		runID: runID, log: log, state: state.NewState(),
		presence: presence{silent: state.Set{}},
		sessions: sessions{byID: map[ID]*session{}, of: map[state.Node]*session{}, joining: map[*session]struct{}{}},
		last:     lastRound{expected: state.Set{}}, torch: torchNodes{stale: true},
	}
}

// Out returns what is to be sent since it was called last.
func (r *Rendezvous) Out() []Envelope {
	out := r.out
	r.out = nil
	return out
}

// Empty reports whether the rendezvous can be forgotten: nobody is in it, and it need not
// remember that it was closed, or which rounds there were.
func (r *Rendezvous) Empty() bool { return r.state.Round == 0 && !r.state.Closed && r.deserted() }

// deserted reports whether nobody is in the rendezvous, nor was in its last round.
func (r *Rendezvous) deserted() bool {
	return len(r.sessions.byID) == 0 && len(r.state.LastHeartbeats) == 0 && len(r.state.Participants) == 0
}

func (r *Rendezvous) send(s *session, m *Message) { r.out = append(r.out, Envelope{To: s.id, Msg: m}) }

func (r *Rendezvous) refuse(id ID, format string, args ...any) *Message {
	m := refuse(format, args...)
	r.refused.Warn(r.log, "rendezvous: node refused", "nodes", "run_id", r.runID, "error", m.Error)
	r.out = append(r.out, Envelope{To: id, Msg: m, End: true})
	return m
}

// Receive handles a message from a session.
func (r *Rendezvous) Receive(now time.Time, id ID, m *Message) {
	s := r.sessions.byID[id]
	if s == nil {
		r.hello(now, id, m)
		return
	}
	s.heard = now
	if last := s.hello.Last; (m.Type == Join || m.Type == Close) && last != nil && last.Round < r.history.ended {
		r.send(s, &Message{Type: Closed}) // its job has ended
		return
	}
	switch m.Type {
	case Join:
		s.hosts, s.dialed = m.Hosts, m.Addr
		r.join(now, s)
	case Leave:
		r.last.leaves(s.node)
		r.remove(now, s.node, rendezvous.NodeLeft)
		r.sessions.setJoining(s, false)
		r.send(s, &Message{Type: Left})
	case Close:
		r.close(s, m.Outcome)
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
		r.refuse(id, "protocol version %d; this server speaks version %d: use the same release of muster on every host",
			m.Version, Version)
		return
	case !m.sensible():
		r.refuse(id, "incomplete or invalid %s", Hello)
		return
	case r.sessions.of[*m.Node] != nil && !r.replace(now, r.sessions.of[*m.Node], m):
		r.contest(now, id, r.sessions.of[*m.Node], m)
		return
	}
	m.LastCall, m.KeepAliveLimit = min(m.LastCall, longest), min(m.KeepAliveLimit, longest)
	if len(r.sessions.byID) == 0 {
		r.rules = state.Rules{MinNodes: m.MinNodes, MaxNodes: m.MaxNodes, LastCall: m.LastCall,
			KeepAliveInterval: m.KeepAlive}
		r.torch.silence = m.KeepAliveLimit
		r.live, r.torch.stale = m.Live, true
	} else if m.MinNodes != r.rules.MinNodes || m.MaxNodes != r.rules.MaxNodes {
		r.refuse(id, "Spec.MinNodes:MaxNodes is %d:%d on %s and %d:%d on the hosts that came before; give all hosts of "+
			"run %q the same", m.MinNodes, m.MaxNodes, m.Host, r.rules.MinNodes, r.rules.MaxNodes, r.runID)
		return
	} else if m.Live != r.live {
		with, without := m.Host, r.sessions.byID[slices.Min(slices.Collect(maps.Keys(r.sessions.byID)))].hello.Host
		if r.live {
			with, without = without, with
		}
		r.refuse(id, "Spec.Live is given on %s and not on %s; give all hosts of run %q the same", with, without, r.runID)
		return
	}
	s := &session{id: id, hello: m, node: *m.Node, heard: now, expires: now.Add(m.KeepAliveLimit)}
	r.sessions.add(s)
	delete(r.presence.silent, s.node)
	r.presence.most = max(r.presence.most, len(r.sessions.byID))
	r.resume(now, s)
	r.send(s, &Message{Type: Welcome, Greeting: Greeting{RunID: r.endsWith}, Sent: m.Sent, Time: now.UnixNano()})
	if r.state.Complete {
		r.probe(s)
	}
}

// probe finds out which sessions from a new one's address are dead, as where its host was started anew:
// what is sent ends the connection if nobody has it at the other end.
func (r *Rendezvous) probe(s *session) {
	for _, id := range slices.Sorted(maps.Keys(r.sessions.byID)) {
		if other := r.sessions.byID[id]; other != s && other.node.Addr == s.node.Addr {
			r.send(other, &Message{Type: Status})
		}
	}
}

// replace ends the session of a node that has come back with another connection
// before it was missed, and reports whether it is the same node.
func (r *Rendezvous) replace(now time.Time, s *session, m *Message) bool {
	if m.Instance == 0 || m.Instance != s.hello.Instance {
		return false
	}
	r.evict(now, s)
	r.settle(now)
	return true
}

// contest refuses another process as a node that is here already: for good once the session that it has
// has answered. Until then that may be dead, as where its host was started anew, and is yet to be missed.
func (r *Rendezvous) contest(now time.Time, id ID, s *session, m *Message) {
	if s.rival != m.Instance && s.heard.After(s.contested) {
		s.rival, s.contested = m.Instance, now
		r.send(s, &Message{Type: Status}) // which ends the connection if nobody has it at the other end
	}
	name, advice := "node "+m.Node.String(), "if two hosts have the same address, give each another Spec.LocalAddr"
	if rank, ok := m.Node.Rank(); ok {
		name, advice = fmt.Sprintf("node rank %d", rank), "give each host its own Spec.NodeRank"
	}
	refusal := r.refuse(id, "%s has joined already, from host %s; %s", name, r.name(s.node), advice)
	refusal.Taken = !s.heard.After(s.contested)
}

// evict drops a node that is not heard of.
func (r *Rendezvous) evict(now time.Time, s *session) {
	r.log.Warn("rendezvous: node has not been heard from", "run_id", r.runID, "node", r.name(s.node),
		"for", now.Sub(s.heard))
	r.gone(now, s)
	r.out = append(r.out, Envelope{To: s.id, Msg: &Message{Type: Change, Kind: rendezvous.Evicted, Rank: -1}, End: true})
}

// status says how far the next round is. To count takes a while in a big rendezvous, where
// many ask: what they hear may be a second old.
func (r *Rendezvous) status(now time.Time) *Message {
	const big = 256
	if r.progress.said == nil || len(r.sessions.byID) <= big || now.Sub(r.progress.at) >= time.Second {
		w := r.state.Waiting(r.torch.Clock(now), r.rules, r.last.ranks, r.name)
		w.Suspended = r.suspended
		r.progress.said, r.progress.at = &Message{Type: Status, Waiting: &w}, now
	}
	return r.progress.said
}

// resume continues, in a rendezvous that has had no round yet, where the one before it
// ended: the next round has the next number, nodes keep their ranks, and those who
// took part are expected.
func (r *Rendezvous) resume(now time.Time, s *session) {
	if s.hello.Spare && !r.history.waited && r.last.hostNames == nil {
		r.history.spares, r.history.waited = now.Add(r.rules.LastCall), true
	}
	last := s.hello.Last
	switch st := r.state; {
	case last == nil || last.Round < 0 || last.Rank < 0 || last.Rank >= last.WorldSize || st.Complete ||
		r.history.lost == nil && st.Round > 0:
		return
	case s.hello.Spare: // it was in a round before that
		r.history.used = max(r.history.used, s.hello.Restarts)
		return
	case r.history.lost == nil || last.Compare(r.history.lost) > 0:
		r.history.lost = last
		st.Round = last.Round + 1
		r.last.ranks, r.last.expected = map[state.Node]int{}, state.Set{}
		r.torch.stale = true
	case last.Compare(r.history.lost) < 0:
		return
	}
	r.history.used = max(r.history.used, s.hello.Restarts)
	r.last.ranks[s.node] = last.Rank
	r.last.expected.Add(s.node)
}

// join takes the node out of its round and lets it take part in the next.
func (r *Rendezvous) join(now time.Time, s *session) {
	if r.state.Exit(s.node) != state.Finish {
		r.do(now, s.node, state.RemoveFromParticipants)
	}
	r.sessions.setJoining(s, true)
	if r.recheck != recheckAll { // else it was the last to leave, and settle has all decide in their order
		r.step(now, s)
	}
}

// step lets a joining node do what it can.
func (r *Rendezvous) step(now time.Time, s *session) {
	for s.joining {
		switch a := r.decide(now, s.node); a {
		case state.Sync, state.KeepAlive:
			return
		case state.Finish:
			if r.last.unannounced {
				return // settle tells all nodes of the round at once
			}
			r.sessions.setJoining(s, false)
			r.tellRound(s)
		case state.FailClosed, state.FailRedundant:
			r.sessions.setJoining(s, false)
			r.send(s, &Message{Type: Closed, Redundant: a == state.FailRedundant, Outcome: r.outcome})
		default:
			r.do(now, s.node, a)
		}
	}
}

// decide is State.Join, and what a rendezvous can do better because it knows who will
// come back. With torch nodes it keeps to their rules.
func (r *Rendezvous) decide(now time.Time, me state.Node) state.Action {
	st, rules := r.state, r.rules
	a := st.Join(me, rules, r.torch.Clock(now), never)
	_, participant := st.Participants[me]
	n := len(st.Participants)
	switch {
	case st.Closed:
	case (a == state.AddToParticipants || a == state.RemoveFromRedundancyList) && r.yields(me):
		if st.RedundancyList.Has(me) {
			return state.Sync
		}
		return state.AddToRedundancyList
	case st.Complete && !participant && st.WaitList.Has(me) && len(st.Participants) >= rules.MaxNodes:
		return state.AddToRedundancyList // it was full before its turn
	case r.torch.any():
	case a == state.AddToParticipants && n >= rules.MaxNodes:
		return state.AddToRedundancyList // it is full, and not complete since suspended
	case a == state.RemoveFromRedundancyList && st.Complete && len(r.last.expected) >= rules.MaxNodes:
		return state.Sync // those who left the round come back
	case !st.Complete && participant && (n >= rules.MaxNodes || r.allBack()):
		a = state.MarkComplete
	case a == state.MarkComplete && len(st.Participants) < rules.MaxNodes && r.spareJoins():
		return state.Sync // it was left out for the last call, and would break the round up
	}
	if a == state.MarkComplete && r.suspended && !r.alone(n) {
		return state.Sync
	}
	return a
}

// Suspend says that another rendezvous may hold the same rendezvous, as this one's holder
// cannot find out whether it is still elected, or, with false, that it is. Meanwhile a round
// needs so many nodes that the others are too few for one, so that no two run.
func (r *Rendezvous) Suspend(now time.Time, suspended bool) {
	r.suspended = suspended
	r.raise(recheckAll)
	if suspended && r.state.Complete && !r.state.Closed && !r.alone(len(r.state.Participants)) {
		r.tell(rendezvous.Suspended, state.Node{}, -1)
	}
	r.settle(now)
}

// alone reports whether beside a round of n the other nodes are too few for one.
func (r *Rendezvous) alone(n int) bool {
	return max(r.rules.MaxNodes, r.presence.most)-n < r.rules.MinNodes
}

// allBack reports whether everybody who took part in the last round takes part in
// this one, and nobody else is there, so that there is nobody to wait for. In a live job others may
// be there: more of them can come in the next round, at little cost, but while a last call lasts no
// worker would get on.
func (r *Rendezvous) allBack() bool {
	st := r.state
	if len(st.RedundancyList) > 0 && len(st.Participants) < r.rules.MaxNodes {
		return false // spares come first, or they would break the round up
	}
	if r.history.lost != nil && len(r.last.expected) < r.history.lost.WorldSize-1 {
		return false // of the last round only the node that held it is known to be lost
	}
	if st.Round == 0 || len(st.WaitList) > 0 || len(st.Participants) < r.rules.MinNodes {
		return false
	}
	if others := len(st.Participants) - len(r.last.expected); others != 0 && (!r.live || len(r.last.expected) == 0) {
		return false
	}
	return r.last.expectedIn(st.Participants)
}

// spareJoins reports whether a spare can take a place now.
func (r *Rendezvous) spareJoins() bool {
	for n := range r.state.RedundancyList {
		if s := r.sessions.of[n]; s != nil && s.joining {
			return true
		}
	}
	return false
}

// do performs an action for a node and notes what follows from it.
func (r *Rendezvous) do(now time.Time, me state.Node, a state.Action) {
	st := r.state
	complete, round, lastCall := st.Complete, st.Round, st.Deadline
	if a == state.AddToRedundancyList {
		delete(st.WaitList, me)
	}
	rules := r.rules
	if n := len(st.Participants) + 1; a == state.AddToParticipants && r.suspended && !r.alone(n) {
		rules.MaxNodes = n + 1 // the last one does not complete it
	}
	st.Do(a, me, rules, r.torch.Clock(now))
	r.holdOpen(now, lastCall)
	r.torch.stale = true
	if st.Complete && (!complete || a == state.AddToRedundancyList) {
		r.warnOfTwins()
	}
	if s := r.sessions.of[me]; s != nil && (a == state.AddToRedundancyList || a == state.RemoveFromRedundancyList) {
		r.send(s, &Message{Type: Spare, Redundant: a == state.AddToRedundancyList, Host: r.last.several})
	}
	switch {
	case st.Complete && !complete:
		r.completed(now)
	case st.Round != round:
		r.raise(recheckAll)
	case a == state.AddToWaitList && st.Complete:
		r.call(now, me)
	case a == state.RemoveFromParticipants:
		r.raise(recheckGap)
	case a == state.AddToParticipants && !r.history.spares.IsZero() && r.survivorsBack():
		r.history.spares = time.Time{}
		r.raise(recheckAll)
	}
}

// completed gives out the ranks of a round.
func (r *Rendezvous) completed(now time.Time) {
	st := r.state
	r.last.expected, r.last.left, r.last.hostNames = state.Set{}, state.Set{}, map[state.Node]string{}
	later := 0
	for n := range st.Participants {
		if s := r.sessions.of[n]; s != nil {
			r.last.expected.Add(n)
			r.last.hostNames[n] = s.hello.Host
			if s.hello.Last != nil { // maybe under a holder that is lost, and said after a round here
				later = max(later, s.hello.Last.Round+1)
			}
		}
	}
	r.last.unannounced = len(r.last.expected) == len(st.Participants)
	if r.last.unannounced {
		st.Round = max(st.Round, later)
		st.AssignRanks(r.last.ranks)
	}
	r.last.ranks = maps.Clone(st.Participants)
	if !r.suspended {
		r.presence.most = len(r.sessions.byID)
	}
	r.makeSpares()
	clear(r.presence.silent)
	r.last.meetingPoint, r.last.toldWaiting, r.history.lost, r.history.spares = nil, false, nil, time.Time{}
	r.raise(recheckAll)
	r.torch.unaware = time.Time{}
	if !r.last.unannounced || len(st.WaitList) > 0 { // torch nodes that were too slow for the last call
		r.torch.unaware = now.Add(TorchLook)
	}
	r.log.Info("rendezvous: round complete", "run_id", r.runID, "round", st.Round, "nodes", len(st.Participants))
}

// makeSpares has torch nodes that wait be spares when a round is full. By their
// own rules they would keep waiting, for which all others restart, and again
// after the next round.
func (r *Rendezvous) makeSpares() {
	st := r.state
	if most := r.rules.MaxNodes; most == 0 || len(st.Participants) < most {
		return
	}
	for n := range st.WaitList {
		if r.sessions.of[n] == nil {
			delete(st.WaitList, n)
			st.RedundancyList.Add(n)
			r.torch.stale = true
		}
	}
}

// tellAll tells all nodes of a new round, none of them torch nodes, with the ranks of
// their workers.
func (r *Rendezvous) tellAll() {
	r.last.unannounced = false
	st := r.state
	byRank := make([]*session, len(st.Participants))
	for node, rank := range st.Participants {
		byRank[rank] = r.sessions.of[node]
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
		r.sessions.setJoining(s, false)
		m := &Message{Type: Round, Round: st.Round, Rank: i,
			Assignment: Assignment{WorldSize: len(byRank), First: byRank[0].node.String(), Ranks: &all[i],
				Job: r.history.first, Used: r.history.used}}
		if i == 0 {
			m.Addr = r.reached(s)
			m.NumHosts = r.sendHosts(s, byRank)
		}
		r.send(s, m)
	}
}

// reached is the address of a node's host by which most of the others have reached
// it: those on other hosts, if the rendezvous is on the node's.
func (r *Rendezvous) reached(s *session) (addr string) {
	if !s.hello.origin.near {
		return ""
	}
	count := map[string]int{}
	for _, other := range r.participants() {
		if by := other.hello.origin.reached; by != "" {
			if count[by]++; count[by] > count[addr] {
				addr = by
			}
		}
	}
	return addr
}

// tellRound tells a node its rank in a round that torch nodes take part in.
func (r *Rendezvous) tellRound(s *session) {
	st := r.state
	m := &Message{Type: Round, Round: st.Round, Rank: st.Participants[s.node], Torch: true,
		Assignment: Assignment{WorldSize: len(st.Participants), Job: r.history.first}}
	for n, rank := range st.Participants {
		if rank == 0 {
			m.First, m.Published = n.String(), r.sessions.of[n] == nil
		}
	}
	if m.Rank == 0 {
		m.Addr = r.reached(s)
	}
	r.send(s, m)
	if r.last.meetingPoint != nil && m.Rank != 0 {
		r.send(s, r.last.meetingPoint)
	}
}

// setMaster takes from rank 0 where the workers meet and passes it on.
func (r *Rendezvous) setMaster(s *session, m *Message) {
	rank, participant := r.state.Participants[s.node]
	if !participant || rank != 0 || !r.state.Complete || m.Round != r.state.Round || len(m.Addr) > mostName {
		return // of a round that is over, or no address
	}
	r.last.meetingPoint = &Message{Type: Master, Round: m.Round, Addr: m.Addr, Port: m.Port}
	for _, other := range r.participants() {
		if other != s && !other.joining {
			r.send(other, r.last.meetingPoint)
		}
	}
}

// participants returns the sessions of the round's nodes, in order of session.
func (r *Rendezvous) participants() []*session {
	list := make([]*session, 0, len(r.state.Participants))
	for n := range r.state.Participants {
		if s := r.sessions.of[n]; s != nil {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *session) int { return int(a.id - b.id) })
	return list
}

// tell tells the nodes that are in the complete round of a change.
func (r *Rendezvous) tell(kind rendezvous.ChangeKind, node state.Node, rank int) {
	m := &Message{Type: Change, Kind: kind, Round: r.state.Round, Host: r.name(node), Rank: rank,
		Torch: r.sessions.of[node] == nil}
	for _, s := range r.participants() {
		if s.node != node {
			r.send(s, m)
		}
	}
}

// name is a node's host name, also if it has gone since the last round, or its address.
func (r *Rendezvous) name(n state.Node) string {
	name := r.last.hostNames[n]
	if s := r.sessions.of[n]; s != nil {
		name = s.hello.Host
	}
	name = cmp.Or(name, n.Addr)
	return name[:min(len(name), mostName)]
}

// call tells the round's nodes, once, that others wait. If torch nodes take part,
// it lets them first see the round as it is: they count the participants when they
// look, and would start workers of a smaller world than the others.
func (r *Rendezvous) call(now time.Time, waiter state.Node) {
	if r.last.unannounced {
		r.tellAll() // or they would not know which round it is about
	}
	switch {
	case r.last.toldWaiting:
	case now.Before(r.torch.unaware):
		r.torch.waiting = waiter
	default:
		r.last.toldWaiting, r.torch.unaware = true, time.Time{}
		r.tell(rendezvous.NodesWaiting, waiter, -1)
	}
}

// callLate tells of nodes that have waited since the round began.
func (r *Rendezvous) callLate(now time.Time) {
	if r.torch.unaware.IsZero() || now.Before(r.torch.unaware) {
		return
	}
	r.torch.unaware = time.Time{}
	st := r.state
	if !st.Complete || st.Closed || len(st.WaitList) == 0 {
		return
	}
	if !st.WaitList.Has(r.torch.waiting) {
		r.torch.waiting = slices.MinFunc(slices.Collect(maps.Keys(st.WaitList)), state.Node.Compare)
	}
	r.call(now, r.torch.waiting)
}

// remove takes a node out of everything, and tells the others of its round why.
func (r *Rendezvous) remove(now time.Time, n state.Node, kind rendezvous.ChangeKind) {
	st := r.state
	rank, participant := st.Participants[n]
	complete, round := st.Complete, st.Round
	r.torch.stale = true
	st.Drop(r.rules, n)
	delete(r.last.expected, n)
	r.torch.Forget(n)
	if participant && complete && !st.Closed {
		r.tell(kind, n, rank)
	}
	r.raise(recheckGap)
	if st.Round != round {
		r.raise(recheckAll)
	}
}

// close closes the rendezvous: this round is the last.
func (r *Rendezvous) close(by *session, o *rendezvous.Outcome) {
	if !r.state.Closed {
		if r.state.Closed = true; o != nil && len(o.Host) <= mostName && len(o.Cause) <= mostCause {
			r.outcome = o
		}
		r.last.twins = "" // it is said again at the end
		r.warnOfTwins()
		r.torch.stale = true
		r.raise(recheckAll)
		for _, s := range r.participants() {
			if s != by && !s.joining {
				r.send(s, &Message{Type: Closed})
			}
		}
	}
	r.sessions.setJoining(by, false)
	r.send(by, &Message{Type: Closed})
}

// Gone handles the end of a session's connection.
func (r *Rendezvous) Gone(now time.Time, id ID) {
	if s := r.sessions.byID[id]; s != nil {
		if r.state.Closed {
			r.last.leaves(s.node)
		}
		r.gone(now, s)
		r.settle(now)
	}
}

func (r *Rendezvous) gone(now time.Time, s *session) {
	r.remove(now, s.node, rendezvous.NodeLost)
	r.sessions.drop(s)
	if now.Sub(s.heard) > s.hello.KeepAliveLimit/2 { // TCP may give it up before the rendezvous does
		r.presence.silent.Add(s.node)
		r.presence.cutOff = r.presence.cutOff || len(r.presence.silent) > len(r.sessions.byID)
	}
}

// Next returns when Advance is due; zero for never.
func (r *Rendezvous) Next() time.Time {
	next := time.Time{}
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if len(r.sessions.expiries) > 0 {
		earlier(r.sessions.expiries[0].expires)
	}
	if lastCall := r.state.Deadline; !r.state.Complete && !lastCall.IsZero() && lastCall.After(r.lastCallOver) {
		earlier(r.torch.When(lastCall).Add(1))
	}
	if at := r.torch.Next(r.torch.silence); !at.IsZero() {
		earlier(at)
	}
	if !r.torch.unaware.IsZero() {
		earlier(r.torch.unaware)
	}
	if !r.history.spares.IsZero() {
		earlier(r.history.spares)
	}
	return next
}

// Advance does what time alone makes necessary.
func (r *Rendezvous) Advance(now time.Time) {
	for len(r.sessions.expiries) > 0 && !now.Before(r.sessions.expiries[0].expires) {
		s := r.sessions.expiries[0]
		if expires, again := s.patience(now); again {
			s.expires = expires
			heap.Fix(&r.sessions.expiries, 0)
			continue
		}
		r.evict(now, s)
	}
	r.dropTorch(now)
	r.callLate(now)
	if until := r.history.spares; !until.IsZero() && !now.Before(until) {
		r.history.spares = time.Time{}
		r.raise(recheckAll)
	}
	if !r.state.Complete && !r.state.Deadline.IsZero() && r.torch.Clock(now).After(r.state.Deadline) {
		r.lastCallOver, r.history.spares = r.torch.Clock(now), time.Time{} // else they would break the round up
		r.raise(recheckAll)
	}
	r.settle(now)
}

// settle has joining nodes decide again after a change that concerns them.
func (r *Rendezvous) settle(now time.Time) {
	for r.recheck != recheckNone {
		list := r.concerned()
		r.recheck = recheckNone
		if r.last.unannounced {
			r.tellAll()
		}
		for _, s := range list {
			r.step(now, s)
		}
	}
}

// concerned returns the joining nodes that have to decide again, in the order in which they decide: those of the
// last round by rank, then the others. After recheckAll these are all joining nodes. After recheckGap, where a
// node is gone, they are the spares, if there is room, and one participant, which can complete the round; in a
// big rendezvous it would take too long if all decided.
func (r *Rendezvous) concerned() []*session {
	st := r.state
	var list []*session
	most := r.rules.MaxNodes
	switch room := len(st.Participants) < most; {
	case r.recheck == recheckAll:
		list = slices.AppendSeq(make([]*session, 0, len(r.sessions.joining)), maps.Keys(r.sessions.joining))
	case room && (!st.Complete || len(r.last.expected) < most || r.torch.any()):
		for n := range st.RedundancyList {
			if s := r.sessions.of[n]; s != nil && s.joining {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, func(a, b *session) int {
		return cmp.Or(cmp.Compare(r.last.turn(a.node), r.last.turn(b.node)), cmp.Compare(a.id, b.id))
	})
	if r.recheck == recheckAll || st.Complete {
		return list
	}
	for n := range st.Participants {
		if s := r.sessions.of[n]; s != nil {
			return append(list, s)
		}
	}
	return list
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
