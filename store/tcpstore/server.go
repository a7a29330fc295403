package tcpstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/internal/kv"
)

// A ServerConfig says where a server listens.
type ServerConfig struct {
	// Addr is host:port. Without a host the server listens on all addresses
	// of both families, as PyTorch's does. Port 0 picks a free one.
	Addr string
	// Listener, if not nil, is used instead of Addr; the server closes it.
	Listener net.Listener
	// Allow, if not empty, are the networks that connections may come from. All
	// others are closed at once, counted (Server.Refused) and logged, the latter once in
	// ten seconds at most. This host is not an exception: workers on it
	// may connect from 127.0.0.1, ::1 or its own address.
	Allow []netip.Prefix
	// Admit, if not nil, is asked about each connection that Allow admits. What it returns
	// says why the connection is closed, and is logged like that; "" admits it.
	Admit func(nc net.Conn) (why string)
	// Limit, if not nil, bounds the connections of this server and of the others that
	// have the same.
	Limit *Limit
	// Guard, if not nil, is passed by every connection before anything else is read from
	// it. Those that it refuses are counted and logged as others that may not connect.
	// PyTorch's clients cannot pass any.
	Guard Guard
	// KeepAlive is how long a connection outlives the host at its other end. What
	// that host waits for is then forgotten, and its sessions end. Below
	// 0 nobody asks. Default 15 s. The system counts in seconds.
	KeepAlive time.Duration
	// Prepare, if not nil, is called before the first connection is served. It is
	// the place for HandleSession and Mirror, which otherwise come too late for
	// a client that connects at once.
	Prepare func(*Server)
	// Relay makes a server without data of its own: see Server.Follow.
	Relay bool
	// Logger gets a warning when a connection is closed for what it sent, once in
	// ten seconds at most. Default slog.Default().
	Logger *slog.Logger
}

// A Server is a TCPStore server, for PyTorch's clients and for Client. Listen starts it, and Close
// ends it; Store is its data without a connection. Its methods may be called concurrently.
//
// It holds at most about 64 KiB for each connection beside the request that is being received and
// the reply that is being sent. A client that does not read its replies is not served until it
// does, and nobody else notices.
type Server struct {
	// One goroutine accepts, and each connection has one, which becomes that of its session.
	// Close waits for all of them. The fields down to places never change. The map m has a
	// lock of its own, which is taken under mu, never the other way round, and is not held
	// for system calls. Reset holds mu until every connection has closed its ended, so that
	// a connection's goroutine takes mu only behind that: what it needs before is atomic, or a
	// sync.Map as handlers is.

	log      *slog.Logger
	ln       net.Listener
	alive    keepAlive
	gate     gate
	memory   *kv.Memory
	m        *kv.Map        // memory's
	all      sync.WaitGroup // the goroutines
	done     chan struct{}  // closed by Close
	arrivals *arrivals
	places   [len(places)]chan struct{} // of the requests that have one

	relay    *relay   // nil: the data is in memory
	handlers sync.Map // of sessions: name → func(net.Conn)

	mu       sync.Mutex         // guards the rest, and each conn's dropped
	cut      chan struct{}      // closed, and made anew, by Reset
	conns    map[*conn]struct{} // those that are not sessions
	sessions map[net.Conn]struct{}
	closed   bool
}

// Listen starts a server, which is listening and serving when it returns.
// The caller closes the server.
func Listen(cfg ServerConfig) (*Server, error) {
	allow, err := admit.NewList(cfg.Allow)
	if err != nil {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		return nil, fmt.Errorf("tcpstore: Allow: %w", err)
	}
	s := &Server{
		log: cmp.Or(cfg.Logger, slog.Default()), ln: cfg.Listener, alive: keepAlive(cfg.KeepAlive),
		gate:   gate{allow: allow, admitted: cfg.Admit, limit: cmp.Or(cfg.Limit, &Limit{Max: math.MaxInt}), guard: cfg.Guard},
		memory: kv.NewMemory(), done: make(chan struct{}), cut: make(chan struct{}),
		conns: map[*conn]struct{}{}, sessions: map[net.Conn]struct{}{},
	}
	s.gate.log, s.arrivals = s.log, newArrivals()
	for i := range places {
		s.places[i] = make(chan struct{}, places[i].most)
	}
	s.m = s.memory.Map
	if cfg.Relay {
		s.relay = newRelay()
	}
	if s.ln == nil {
		lc := net.ListenConfig{KeepAlive: -1} // accept sets it
		ln, err := lc.Listen(context.Background(), "tcp", cfg.Addr)
		if err != nil {
			return nil, fmt.Errorf("tcpstore: %w", err)
		}
		s.ln = ln
	}
	if cfg.Prepare != nil {
		cfg.Prepare(s)
	}
	s.all.Go(s.accept)
	return s, nil
}

// Addr returns the address at which the server listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Port returns the port at which the server listens.
func (s *Server) Port() int {
	if addr, ok := s.ln.Addr().(*net.TCPAddr); ok {
		return addr.Port
	}
	return 0
}

// MaxConns returns how many connections the server may have, with others of its Limit.
func (s *Server) MaxConns() int { return s.gate.limit.Max }

// Refused returns how many connections were closed because of ServerConfig's Allow, Admit and Guard.
func (s *Server) Refused() int64 { return s.gate.refused() }

// Store returns a view of the server's data that sees what clients see,
// without a connection. It works until Close, and none of its calls has a time
// limit but its context.
func (s *Server) Store() store.Store {
	return view{store.Prefix("", s.memory), s.memory}
}

// view adds the "/" that clients put before every key.
type view struct {
	store.Store
	memory *kv.Memory
}

func (v view) Barrier(ctx context.Context, key string, n int) error {
	return v.memory.Barrier(ctx, "/"+key, n)
}

// Mirror makes m the place where the value of a key is, as clients name the key,
// and returns the value that the key had, or nil if there was none. See
// store.Mirror. Reset does not touch the key.
func (s *Server) Mirror(key string, m store.Mirror) (existing []byte) {
	s.m.Lock()
	defer s.m.Unlock()
	return s.m.Mirror("/"+key, m.Render, m.Adopt)
}

// Unmirror ends what Mirror began and removes the key. Where there is no mirror it
// does nothing.
func (s *Server) Unmirror(key string) {
	s.m.Lock()
	defer s.m.Unlock()
	s.m.Unmirror("/" + key)
}

// WaitForWorkers blocks until n clients that were given a world size have
// connected since the server started or was last reset.
// Source: TCPStore::waitForWorkers.
func (s *Server) WaitForWorkers(ctx context.Context, n int) error {
	joined := int64(0)
	err := s.memory.WaitNumber(ctx, initKey, func(count int64) bool {
		joined = count
		return count >= int64(n)
	})
	if err != nil {
		return fmt.Errorf("tcpstore: wait for workers, %d/%d joined: %w", joined, n, err)
	}
	return nil
}

// Workers returns how many clients that were given a world size have connected since
// the server started or was last reset.
func (s *Server) Workers() (n int) {
	_ = s.memory.WaitNumber(context.Background(), initKey, func(count int64) bool { n = int(count); return true })
	return n
}

// Serve waits until ctx is done or Close was called, and closes the server. Listen has
// begun to serve; this is for who runs it like the servers of other packages.
func (s *Server) Serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-s.done:
	}
	return s.Close()
}

// Close stops listening and ends all connections, sessions among them, and all
// blocked calls. When it returns all of them have ended. It may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.all.Wait()
		return nil
	}
	s.closed = true
	close(s.done)
	if s.relay != nil {
		s.relay.stop()
	}
	err := s.ln.Close()
	for c := range s.conns {
		c.shut()
	}
	for nc := range s.sessions {
		nc.Close()
	}
	s.mu.Unlock()
	s.arrivals.close()
	s.all.Wait()
	s.gate.finish()
	s.memory.Close()
	return err
}

// Reset ends all connections, then removes all keys and queues. Clients that
// connect from then on find the server empty. Blocked calls of Store return
// store.ErrReset. Sessions and mirrored keys stay.
func (s *Server) Reset() {
	s.mu.Lock() // keeps new connections out
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
	for c := range s.conns {
		c.shut()
	}
	for c := range s.conns {
		<-c.ended
	}
	clear(s.conns)
	s.memory.Reset()
}

func (s *Server) accept() {
	pause := time.Duration(0)
	for {
		nc, err := s.ln.Accept()
		if err == nil {
			pause = 0
			if s.admits(nc) {
				s.alive.apply(nc)
				s.start(nc)
			} else {
				nc.Close() // last: a client that sees it closed finds it counted
			}
			continue
		}
		select {
		case <-s.done:
			return
		default:
		}
		// Most likely no file descriptor is left; there may be one soon.
		s.closeOldest()
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.log.Error("tcpstore: cannot accept a connection; the limit of open files (ulimit -n) may be too low",
			"err", err, "retry_in", pause)
		select {
		case <-s.done:
		case <-time.After(pause):
		}
	}
}

// admits reports whether a new connection may stay, and counts it if not.
func (s *Server) admits(nc net.Conn) bool {
	if !s.gate.admits(nc) {
		return false
	}
	limit, remote := s.gate.limit, nc.RemoteAddr()
	if limit.open.Load() < int64(limit.Max) {
		return true
	}
	oldest := s.closeOldest()
	if oldest != nil {
		remote = oldest.RemoteAddr()
	}
	s.gate.turnAway(tooMany, remote, fmt.Sprintf("tcpstore: connection closed: %d are open, and the process needs "+
		"the other descriptors; raise the limit of open files (ulimit -n)", limit.Max))
	return oldest != nil
}

// closeOldest closes the connection that has said nothing for the longest time, and returns
// it. It returns nil if all have begun as clients do.
func (s *Server) closeOldest() net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *conn
	for c := range s.conns {
		if !c.validated.Load() && !c.dropped && (oldest == nil || c.since.Before(oldest.since)) {
			oldest = c
		}
	}
	if oldest == nil {
		return nil
	}
	oldest.dropped = true
	oldest.shut()
	return oldest.raw
}

func (s *Server) start(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		nc.Close()
		return
	}
	s.conns[c], c.cut = struct{}{}, s.cut
	s.gate.limit.open.Add(1)
	s.all.Go(func() { s.serve(c); s.gate.limit.open.Add(-1) })
}

// serve serves a connection, and the session that it may become.
func (s *Server) serve(c *conn) {
	nc, err := s.gate.prove(c.raw)
	if err == nil {
		c.nc = nc
		err = c.serve()
	}
	if err != errSession {
		c.raw.Close()
	}
	c.dropWaits()
	close(c.ended)
	switch ours := s.remove(c, err == errSession); {
	case err != errSession:
		s.gate.report(c.raw.RemoteAddr(), err)
	case !ours:
		c.raw.Close()
	default:
		s.alive.insist(c.raw)
		c.nc.Write([]byte{accepted})
		s.hold(c.raw, c.afterwards(), c.session)
	}
}

// remove forgets a connection, or makes it a session if Close or Reset has not
// ended it.
func (s *Server) remove(c *conn, session bool) (ours bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ours = s.conns[c]
	delete(s.conns, c)
	if session && ours && !s.closed {
		s.sessions[c.raw] = struct{}{}
		return true
	}
	return false
}
