package server

import (
	"cmp"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// mostQueued is how many bytes may wait for a session that does not read before
// the session is ended.
const mostQueued = 1 << 20

// helloTimeout is how long a new connection may take to say who it is.
const helloTimeout = 30 * time.Second

// Mirrors is where the state's key is, for torch nodes: a TCPStore server.
type Mirrors interface {
	Mirror(key string, m store.Mirror) (existing []byte)
	Unmirror(key string)
}

// endTimeout is how long the last messages of a session may take.
const endTimeout = 5 * time.Second

// EndsWith says that the server ends with the job that has a run ID, as its agent holds it. Another
// job of that ID cannot meet here then. It is called before the server serves.
func (s *Server) EndsWith(runID string) { s.endsWith = runID }

// A Server holds one rendezvous for each run ID that it is asked for.
//
// Locks are taken in this order: Server.showing, the store's, Server.mu, hosted.mu, line.mu. The
// store calls Render and Adopt with its own lock held, so nothing but showing is held when the
// Server calls Mirror or Unmirror.
type Server struct {
	mirrors Mirrors
	log     *slog.Logger

	badGreeting admit.Tally
	calls       calls

	showing sync.Mutex // one call of Mirror or Unmirror at a time

	mu        sync.Mutex         // guards the rest
	hosted    map[string]*hosted // by run ID
	next      map[string]int     // the first round of another job, where the rendezvous is forgotten
	last      ID
	endsWith  string // see EndsWith
	suspended bool   // and so is each rendezvous that is made
	closed    bool
}

// New returns a Server that holds no rendezvous yet. mirrors shows their states to torch
// nodes; nil: there are none. log defaults to slog.Default().
func New(mirrors Mirrors, log *slog.Logger) *Server {
	return &Server{mirrors: mirrors, log: cmp.Or(log, slog.Default()), hosted: map[string]*hosted{},
		next:  map[string]int{},
		calls: calls{most: mostCalls, open: map[uint64]openCall{}, ringing: map[uint64]chan<- answered{}}}
}

// hosted is a rendezvous in use. All that concerns it happens in do, with mu held: what the
// rendezvous has to say is queued there, in order, before anything else can happen.
type hosted struct {
	runID string

	mu    sync.Mutex // guards the rest
	rdzv  *Rendezvous
	lines map[ID]*line // of the sessions that have not ended
	timer *time.Timer  // calls Advance
	due   time.Time    // when timer fires; zero: it does not
	// adopted says that a torch node has written the state.
	adopted bool
	// over is when the last session of a closed rendezvous ended.
	over time.Time
	// workers is the workers' store of a round, if agents have asked for one.
	workers struct {
		round  int
		shared *tcpstore.Shared
	}
	idle chan struct{} // closed when the last session has ended; nil if nobody asks
}

// key is where the store shows the state.
func (l *hosted) key() string { return "torch.rendezvous." + l.runID }

// A line is one session's way out. Its writer goroutine alone writes to conn; everybody else
// queues, and never waits for the network.
type line struct {
	conn net.Conn
	wake chan struct{} // has room for one
	done chan struct{} // closed when everything is written

	mu     sync.Mutex // guards the rest
	queued []byte
	end    bool // nothing more is queued; the connection ends after queued
}

// Serve serves one connection until it ends.
func (s *Server) Serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(helloTimeout))
	hello, err := Read(conn)
	if err == io.EOF {
		return // somebody has only looked who is here, as muster doctor does
	}
	if err != nil {
		s.badGreeting.Warn(s.log, "rendezvous: bad greeting", "connections", "remote", conn.RemoteAddr(), "error", err)
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	hello.origin = originOf(conn)
	ln := &line{conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l, id := s.enter(hello, ln)
	if l == nil {
		m := refuse("the job with run ID %q has ended here", hello.RunID)
		m.Over = true
		_ = conn.SetWriteDeadline(time.Now().Add(endTimeout))
		_, _ = conn.Write(m.Append(nil))
		return
	}
	var writer sync.WaitGroup
	writer.Go(ln.write)
	for {
		m, err := Read(conn)
		if err != nil {
			break
		}
		l.do(func(r *Rendezvous, now time.Time) { r.Receive(now, id, m) })
	}
	s.endSession(l, id)
	conn.Close()
	ln.push(nil, true)
	writer.Wait()
}

func originOf(conn net.Conn) origin {
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	remote, _ := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || remote == nil || local.IP.IsLoopback() || local.IP.Equal(remote.IP) {
		return origin{near: true}
	}
	return origin{reached: local.IP.String(), from: remote.AddrPort().Addr().Unmap().WithZone("")}
}

// enter brings a session into its rendezvous, which is made if need be; but not for a node
// that is refused. It returns nil after Close, and where the job has ended that holds this server.
func (s *Server) enter(hello *Message, ln *line) (*hosted, ID) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, 0
	}
	s.last++
	id := s.last
	l, created := s.find(hello)
	if created && s.endsWith == hello.RunID && s.hosted[hello.RunID] != nil {
		s.mu.Unlock()
		return nil, 0
	}
	l.do(func(r *Rendezvous, now time.Time) {
		l.lines[id] = ln
		r.Receive(now, id, hello)
		created = created && len(r.sessions.byID) > 0 // a node that is refused brings no rules
	})
	var forgotten []*hosted
	if created {
		forgotten = s.forget(time.Now())
		s.hosted[hello.RunID] = l
	}
	s.mu.Unlock()
	for _, old := range forgotten {
		s.hide(old)
	}
	if created {
		s.show(l)
	}
	return l, id
}

// find returns the rendezvous that a hello is for: its run's. It makes a new one where there
// is none, or where the run's job has ended (it was closed, or all of its hosts are lost) and
// the node is not one that took part in it. The rounds of a new one have numbers of their
// own: the store still has keys of the rounds before. The caller holds mu.
func (s *Server) find(hello *Message) (l *hosted, created bool) {
	first, ended := s.next[hello.RunID], 0
	if l = s.hosted[hello.RunID]; l != nil {
		over := false
		l.do(func(r *Rendezvous, _ time.Time) {
			over = hello.Last == nil && (r.state.Closed || r.state.Round > 0 && r.deserted())
			if first, ended = r.state.Round+1, r.history.ended; r.state.Closed {
				ended = first
			}
		})
		if !over {
			return l, false
		}
	}
	l = &hosted{runID: hello.RunID, rdzv: NewRendezvous(hello.RunID, s.log), lines: map[ID]*line{}}
	l.rdzv.suspended, l.rdzv.endsWith = s.suspended, s.endsWith
	l.rdzv.history.first, l.rdzv.history.ended, l.rdzv.state.Round = first, ended, first
	return l, true
}

// rememberFor is how long a rendezvous whose job has ended is kept, for hosts that come late.
const rememberFor = time.Hour

// forget drops the rendezvous of jobs that ended long ago and returns them, to be hidden.
// The caller holds mu.
func (s *Server) forget(now time.Time) (forgotten []*hosted) {
	for runID, l := range s.hosted {
		l.mu.Lock()
		old := len(l.lines) == 0 && !l.over.IsZero() && now.Sub(l.over) > rememberFor
		next := l.rdzv.state.Round + 1
		l.mu.Unlock()
		if old {
			delete(s.hosted, runID)
			s.next[runID] = next
			forgotten = append(forgotten, l)
		}
	}
	return forgotten
}

// of returns a run's rendezvous; nil: there is none.
func (s *Server) of(runID string) *hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosted[runID]
}

// show lets torch nodes see a new rendezvous, unless it is dropped already. What they have
// stored before is its first state.
func (s *Server) show(l *hosted) {
	if s.mirrors == nil {
		return
	}
	s.showing.Lock()
	defer s.showing.Unlock()
	if s.of(l.runID) != l {
		return
	}
	existing := s.mirrors.Mirror(l.key(), l)
	l.do(func(r *Rendezvous, now time.Time) {
		if existing != nil && !l.adopted && r.history.first == 0 {
			r.Adopt(now, existing)
		}
	})
}

// hide ends show for a rendezvous that was dropped, unless its run has another one, which
// is shown in its place.
func (s *Server) hide(l *hosted) {
	if s.mirrors == nil {
		return
	}
	s.showing.Lock()
	defer s.showing.Unlock()
	if s.of(l.runID) == nil {
		s.mirrors.Unmirror(l.key())
	}
}

// endSession ends a session, and forgets its rendezvous if that is empty.
func (s *Server) endSession(l *hosted, id ID) {
	s.mu.Lock()
	empty := false
	l.do(func(r *Rendezvous, now time.Time) {
		r.Gone(now, id)
		delete(l.lines, id)
		if len(l.lines) == 0 && (r.state.Closed || r.state.Round > 0) {
			l.over = now
		}
		if len(l.lines) == 0 {
			l.endWorkers()
		}
		if len(l.lines) == 0 && l.idle != nil {
			close(l.idle)
			l.idle = nil
		}
		if empty = r.Empty() && s.hosted[l.runID] == l; empty {
			delete(s.hosted, l.runID)
		}
	})
	s.mu.Unlock()
	if empty {
		s.hide(l)
	}
}

// do lets f use the rendezvous, and sends what the rendezvous has to say.
func (l *hosted) do(f func(r *Rendezvous, now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.rdzv, time.Now())
	l.deliver()
	l.setTimer()
}

// deliver queues what the rendezvous has to say. Many get the same message.
func (l *hosted) deliver() {
	var last *Message
	var text []byte
	for _, e := range l.rdzv.Out() {
		ln := l.lines[e.To]
		if ln == nil {
			continue
		}
		if e.Msg != last {
			last, text = e.Msg, e.Msg.Append(nil)
		}
		ln.push(text, e.End)
	}
}

func (l *hosted) setTimer() {
	due := l.rdzv.Next()
	if due.Equal(l.due) {
		return
	}
	l.due = due
	switch {
	case due.IsZero():
		l.timer.Stop()
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Until(due), func() {
			l.do(func(r *Rendezvous, now time.Time) {
				l.due = time.Time{}
				r.Advance(now)
			})
		})
	default:
		l.timer.Reset(time.Until(due))
	}
}

// Render implements store.Mirror.
func (l *hosted) Render() (value []byte, changed bool) {
	l.do(func(r *Rendezvous, now time.Time) { value, changed = r.Text(now) })
	return value, changed
}

// Adopt implements store.Mirror.
func (l *hosted) Adopt(value []byte) {
	l.do(func(r *Rendezvous, now time.Time) {
		if r.refusesTorch() {
			r.torch.stale = true
			return
		}
		l.adopted = true
		r.Adopt(now, value)
	})
}

// push queues text, and then the end of the connection if end is set. A session
// that has too much queued is ended.
func (ln *line) push(text []byte, end bool) {
	ln.mu.Lock()
	if !ln.end {
		ln.queued = append(ln.queued, text...)
		if len(ln.queued) > mostQueued {
			ln.queued, end = nil, true
		}
		if ln.end = end; end {
			_ = ln.conn.SetWriteDeadline(time.Now().Add(endTimeout))
		}
	}
	ln.mu.Unlock()
	select {
	case ln.wake <- struct{}{}:
	default:
	}
}

// write writes what is queued until the end, which it passes on.
func (ln *line) write() {
	defer close(ln.done)
	defer ln.conn.Close()
	for {
		ln.mu.Lock()
		text, end := ln.queued, ln.end
		ln.queued = nil
		ln.mu.Unlock()
		if len(text) > 0 {
			if _, err := ln.conn.Write(text); err != nil {
				return
			}
			continue
		}
		if end {
			return
		}
		<-ln.wake
	}
}

// Suspend calls Suspend of each rendezvous, and of those that are made later.
func (s *Server) Suspend(suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspended = suspended
	for _, l := range s.hosted {
		l.do(func(r *Rendezvous, now time.Time) { r.Suspend(now, suspended) })
	}
}

// Beat returns unless the server is stuck, and reports whether most of a run's nodes have gone silent
// since it was called last: maybe they still reach each other.
func (s *Server) Beat() (cutOff bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.hosted {
		l.do(func(r *Rendezvous, _ time.Time) { cutOff, r.presence.cutOff = cutOff || r.presence.cutOff, false })
	}
	return cutOff
}

// Drain waits until a run has no session any more, or until done is closed.
func (s *Server) Drain(done <-chan struct{}, runID string) {
	l := s.of(runID)
	if l == nil {
		return
	}
	l.mu.Lock()
	if len(l.lines) == 0 {
		l.mu.Unlock()
		return
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
	case <-done:
	}
}

// Close ends all sessions, each after what it is still to be told, and forgets all
// rendezvous. It waits up to 5 s for sessions that do not read.
func (s *Server) Close() {
	s.mu.Lock()
	all := s.hosted
	s.hosted, s.closed = map[string]*hosted{}, true
	s.mu.Unlock()
	var lines []*line
	for _, l := range all {
		l.mu.Lock()
		for _, ln := range l.lines {
			ln.push(nil, true)
			lines = append(lines, ln)
		}
		if l.timer != nil {
			l.timer.Stop()
		}
		l.endWorkers()
		l.mu.Unlock()
		s.hide(l)
	}
	for _, ln := range lines {
		<-ln.done
	}
}
