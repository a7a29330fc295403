package health

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/health/jobstate"
)

const (
	defaultTimeout  = 60 * time.Second
	defaultRefresh  = 100 * time.Millisecond
	defaultMaxConns = 256
)

// EnvPort names the variable that tells an agent where to serve.
// Source: elastic/agent/server/local_elastic_agent.py.
const EnvPort = "TORCHELASTIC_HEALTH_CHECK_PORT"

// What clients have to keep to.
const (
	headerTimeout = 5 * time.Second  // from the first byte of a request to the end of its header
	readTimeout   = 10 * time.Second // of a whole request
	writeTimeout  = 10 * time.Second // of an answer, which slow readers may not take longer for
	idleTimeout   = 60 * time.Second // between two requests of a connection
	maxHeader     = 8 << 10
	maxFromHeader = maxHeader + 48*maxStreams // of an agent, which says where each stream continues
	maxMetrics    = 16 << 20
	closeTimeout  = time.Second // for what is being answered when the server ends
)

// defaultPatience is how long a request waits for the Source before it gets what
// that said last.
const defaultPatience = 250 * time.Millisecond

// Requests that are answered in a second, of probes and of everything else; more
// of them wait, up to paceLimit. The page costs 0.2 ms of CPU time, most of it the
// kernel's, so that a flood takes a twentieth of one CPU.
const (
	probeRate = 1000
	readRate  = 250
	burst     = 100
	paceLimit = 2 * time.Second // longer than MaxConns requests take
)

// The calls to other hosts that begin in a second for followers of their logs: each is work for the
// host that holds the rendezvous. One follower of 1,000 hosts needs 4 s.
const (
	dialRate  = 200
	dialLimit = 10 * time.Second
)

// A Source knows the job. Its methods are called from any goroutine.
type Source interface {
	// Alive returns when the agent last made progress: now, if it is waiting for
	// something that it would notice. It returns at once.
	Alive() time.Time
	// State returns what is known at this moment; it may leave out the fields that the
	// server sets. The caller may read the State at any later time, and does not change
	// it. Calls come one at a time, at most one in Config.Refresh. ctx ends when the server
	// does; State then returns soon.
	State(ctx context.Context) *jobstate.State
	// WriteMetrics writes Prometheus' text format. Calls come as those of State.
	WriteMetrics(w io.Writer) error
	// GPUs returns how busy this host's GPUs are; nil if that is not known. Only the first call
	// waits for it.
	GPUs(wait time.Duration) []agent.GPU
}

// gpuWait is how long the first view waits for nvidia-smi.
const gpuWait = 500 * time.Millisecond

// Config is what a Server needs.
type Config struct {
	// Addr is where to listen: a port, "host:port" or "unix:/path". A bare port
	// means 127.0.0.1; 0 means any free one.
	Addr string
	// Listener is used instead of Addr where it is set. The Server closes it.
	Listener net.Listener
	// Control lets clients of the Server change the job. It is for a Listener that only
	// the job's user, or the job's other agents, can connect to; nil means that clients can
	// only read.
	Control Control
	// Call connects to the agent of another host, at a Server with a Control and without a
	// Call. With it this Server is about the whole job, not only about this host. Its
	// answers are those of a rendezvous.Caller.
	Call func(ctx context.Context, groupRank int) (net.Conn, error)
	// CallToRead is Call for who reads logs, whom anybody may be at an open address. Default Call.
	CallToRead func(ctx context.Context, groupRank int) (net.Conn, error)
	// Logs follows what this host's workers write, for /v1/logs?follow; nil: nobody can.
	Logs Follower
	// Names are further names by which clients ask for this server, as that of a
	// proxy. Otherwise it answers to addresses, localhost and, beyond the loopback
	// interface, this host's own name; to others not, for a page on the internet may
	// have a name that leads here.
	Names []string
	// Source knows the job.
	Source Source
	// Timeout is how long the agent may make no progress and still count as
	// alive. Default 60 s.
	Timeout time.Duration
	// Refresh is how old an answer may be; the Source is asked no more often.
	// Default 100 ms.
	Refresh time.Duration
	// MaxConns is how many connections may be open at once; for more, the oldest
	// ones that wait are closed. Default 256.
	MaxConns int
	// Logger gets what clients do wrong (Debug) and what the Source does wrong
	// (Warn). Default slog.Default().
	Logger *slog.Logger
}

// A Server answers at one address. Make it with Listen, then call Serve, once, or Close. Its methods
// may be called concurrently.
type Server struct {
	// Each request runs in a goroutine of package net/http and touches nothing of the Server
	// that changes, but what has a lock of its own: the connections, the pacers, and the two
	// caches, in whose goroutines alone the Source and the other hosts are asked.

	cfg   Config // with the defaults filled in
	conns *conns // the listener
	hosts hosts

	shown jobView
	end   context.CancelFunc // ends jobView.life, in Close

	stops     atomic.Int32 // requests to stop the job that are passed on
	following atomic.Int64 // streams of the whole job
	probes    *pacer       // of /healthz and /readyz, which a flood of others must not hold up
	reading   *pacer       // of all others
	dialing   *pacer       // of calls to follow other hosts' logs

	mu       sync.Mutex     // guards ended, and that requests begin only before it
	ended    bool           // no more are to begin
	requests sync.WaitGroup // that are under way
}

// A jobView is what a Server shows of the job: what the Source knows and, with Config.Call, what other hosts say. It asks
// them no more often than its caches let it.
type jobView struct {
	cfg *Config // the Server's

	patience time.Duration // defaultPatience but in tests
	old      time.Duration // othersOld but in tests

	// life is what the Source is asked under, in goroutines of the caches, beyond the request that needs the answer.
	life context.Context

	state   *cache[*snapshot]
	metrics *cache[[]byte]
	// With Config.Call: what other hosts say, and what is made of it. last is fetchOthers' own.
	others *cache[*others]
	job    *cache[*snapshot]
	last   others
	early  atomic.Pointer[others] // what has come of the answers to a first look, or to one after a while
}

// Listen opens the address. Connections wait until Serve is called. The error is
// that of ParseAddr, wraps that of package net, or says that there is no Source.
func Listen(cfg Config) (*Server, error) {
	if cfg.Source == nil {
		return nil, errors.New("health: Config.Source is nil")
	}
	if cfg.Timeout < 0 || cfg.Refresh < 0 || cfg.MaxConns < 0 {
		return nil, fmt.Errorf("health: Config.Timeout %v, Refresh %v or MaxConns %d is negative", cfg.Timeout, cfg.Refresh,
			cfg.MaxConns)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Refresh = cmp.Or(cfg.Refresh, defaultRefresh)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, defaultMaxConns)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.CallToRead == nil {
		cfg.CallToRead = cfg.Call
	}
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = listen(cfg.Addr); err != nil {
			return nil, err
		}
	}
	s := &Server{
		cfg: cfg, hosts: hostsOf(l.Addr(), cfg.Addr, cfg.Names),
		conns:   &conns{Listener: l, max: cfg.MaxConns},
		probes:  &pacer{every: time.Second / probeRate, burst: burst, limit: paceLimit},
		reading: &pacer{every: time.Second / readRate, burst: burst, limit: paceLimit},
		dialing: &pacer{every: time.Second / dialRate, burst: dialRate, limit: dialLimit},
	}
	s.shown = jobView{cfg: &s.cfg, patience: defaultPatience, old: othersOld}
	s.shown.life, s.end = context.WithCancel(context.Background())
	s.shown.state = newCache(&s.shown, "the state of the job", cfg.Refresh, s.shown.fetchState)
	s.shown.metrics = newCache(&s.shown, "the metrics", cfg.Refresh, s.shown.fetchMetrics)
	s.shown.others = newCache(&s.shown, "the state of other hosts", othersFresh, s.shown.fetchOthers)
	s.shown.job = newCache(&s.shown, "the state of all hosts", cfg.Refresh, s.shown.fetchJob)
	return s, nil
}

func newCache[T any](v *jobView, what string, fresh time.Duration, fetch func(context.Context) (T, error)) *cache[T] {
	return &cache[T]{what: what, fetch: fetch, fresh: fresh, log: v.cfg.Logger, life: v.life}
}

// Addr returns where the server listens, with the port that it got.
func (s *Server) Addr() net.Addr { return s.conns.Addr() }

// Serve answers until ctx ends, or Close, and returns nil then. Whatever it has started has
// ended when it returns.
func (s *Server) Serve(ctx context.Context) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		Protocols:         new(http.Protocols),
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	if s.cfg.Control != nil {
		srv.MaxHeaderBytes = maxFromHeader
	}
	srv.Protocols.SetHTTP1(true)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		limit := closeTimeout
		if s.stops.Load() > 0 { // other hosts are being told
			limit = stopTime
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		s.conns.Listener.Close()
		s.conns.closeIdle() // Shutdown would wait for browsers that connect in advance
		if srv.Shutdown(closing) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(s.conns)
	if stop() { // it failed by itself, or Close ended it
		if s.shown.life.Err() != nil && errors.Is(err, net.ErrClosed) {
			err = nil
		}
		return errors.Join(err, srv.Close(), s.Close())
	}
	<-stopped
	return s.Close()
}

// Close ends Serve, or a server that Serve was not called for. It returns when no request is
// being answered any more.
func (s *Server) Close() error {
	s.end()
	err := s.conns.Close()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.requests.Wait()
	s.shown.job.flight.Wait()
	s.shown.others.flight.Wait()
	s.shown.state.flight.Wait()
	s.shown.metrics.flight.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// begin counts a request as under way, until requests.Done; false when the server has ended.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.requests.Add(1)
	return true
}

// fetchState asks the Source.
func (v *jobView) fetchState(ctx context.Context) (*snapshot, error) {
	state := v.cfg.Source.State(ctx)
	if state == nil {
		return nil, errors.New("the source has none")
	}
	return v.newSnapshot(state, jobstate.Others{}), nil
}

// fetchMetrics asks the Source.
func (v *jobView) fetchMetrics(context.Context) ([]byte, error) {
	var b bytes.Buffer
	err := v.cfg.Source.WriteMetrics(&b)
	if err == nil && b.Len() > maxMetrics {
		err = fmt.Errorf("more than %d bytes", maxMetrics)
	}
	return b.Bytes(), err
}
