package timer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
)

// A Server keeps timers and reaps the processes whose timers expire. Its methods
// may be called concurrently. Timers run out while Run does; what is registered
// before is kept for it.
//
// Every process has a heap of its timers, and the server has one of the processes,
// by their first deadline. So a process is dropped at once with however many
// timers, and one alarm at the first deadline of all is enough.
// Source: TimerServer in api.py.
type Server struct {
	cfg    Config
	log    *slog.Logger
	wg     *tally // reaping, events and log lines
	events courier
	lines  courier // of the log

	first   atomic.Uint64 // what the alarm is set to, as bits of a float64
	ringing atomic.Int64  // since when the alarm is being dealt with, in ns since 1970; 0: it is not
	running atomic.Bool   // Run runs
	ended   atomic.Int64  // when Run returned

	mu      sync.Mutex // guards the rest
	alarm   alarm
	procs   map[int]*process
	last    *process // the one looked up last
	queue   heap[process, *process]
	watch   watcher
	owns    func(pid int) bool
	refused map[int]refusal
	attempt int   // counts Reset
	handles int32 // counts handles; wraps around
	tidyAt  int   // how many processes are worth a tidy
	seq     uint64
	scopes  int // bytes of all scopes
	stats   Stats
	state   runState
	cancel  context.CancelFunc // ends Run
	done    chan struct{}      // closed when Run has returned; nil before it was called
}

type runState int

const (
	fresh runState = iota
	running
	stopped
)

// A process has, or had, timers.
type process struct {
	handle  *handle
	timers  map[string]*entry
	heap    heap[entry, *entry] // those that can expire
	at      int                 // index in Server.queue
	scopes  int                 // bytes of its scopes
	most    int                 // how many timers it had since timers was made
	reaping bool                // its expiry is being dealt with
	gone    bool                // no longer in Server.procs
}

func (p *process) place(i int) { p.at = i }

// An entry is a timer.
type entry struct {
	scope  string
	time   float64
	seq    uint64
	signal int32
	at     int32 // index in process.heap
}

func (e *entry) place(i int) { e.at = int32(i) }

func (e *entry) request(pid int) Request {
	return Request{PID: pid, ScopeID: e.scope, ExpirationTime: e.time, Signal: syscall.Signal(e.signal)}
}

// NewServer checks cfg and returns a server for Run to run. All that is wrong with
// cfg is reported together.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, owns: cfg.Owns, wg: newTally(),
		log:     cfg.Logger.With("run_id", cfg.RunID),
		procs:   map[int]*process{},
		refused: map[int]refusal{},
	}
	s.events.tally, s.lines.tally = s.wg, s.wg
	s.alarm = newAlarm(cfg)
	s.first.Store(math.Float64bits(math.Inf(1)))
	return s, nil
}

// Run reaps until ctx is done or Close is called, and returns after everything that it started has
// ended: Config.Reap and the events too. It emits EventStarted first and
// EventStopped last, and may be called once. The error is nil unless the server
// cannot start.
// Source: TimerServer.start and stop.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.state != fresh {
		s.mu.Unlock()
		return errors.New("timer server: Run or Close was called before")
	}
	ctx, s.cancel = context.WithCancel(ctx)
	defer s.cancel()
	s.state, s.done = running, make(chan struct{})
	defer close(s.done)
	s.running.Store(true)
	s.mu.Unlock()
	s.emit(EventStarted, nil)

	var wg sync.WaitGroup
	wg.Go(func() { s.alarm.run(ctx, func() { s.fire(ctx) }) })
	if err := s.startWatch(); err != nil {
		s.tell(slog.LevelInfo, "timers of processes that ended stay until they expire", "error", err)
	}
	wg.Go(s.watch.run)
	<-ctx.Done()
	s.watch.close()
	wg.Wait()

	s.ended.Store(s.cfg.now().UnixNano())
	s.shut()
	s.wg.Wait()
	s.emit(EventStopped, nil)
	s.wg.Wait()
	return nil
}

// Close ends Run and waits for it, or frees what NewServer made if Run was not called.
// It may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	cancel, done, unused := s.cancel, s.done, s.state == fresh
	s.mu.Unlock()
	switch {
	case done != nil:
		cancel()
		<-done
	case unused:
		s.shut()
	}
	return nil
}

// shut drops what there is; nothing is registered any more.
func (s *Server) shut() {
	s.mu.Lock()
	s.state = stopped
	free := s.dropAll()
	s.alarm.close()
	s.mu.Unlock()
	free()
}

// startWatch lets the watcher know the processes that came before it.
func (s *Server) startWatch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.bare {
		return nil
	}
	if err := s.watch.open(s.died); err != nil {
		return err
	}
	for _, p := range s.procs {
		s.watch.add(p.handle)
	}
	return nil
}

// emit has Config.OnEvent called.
func (s *Server) emit(name string, r *Request) {
	if s.cfg.OnEvent != nil {
		s.events.add(func() { s.cfg.OnEvent(name, r) })
	}
}

// tell logs without waiting for whoever reads the log.
func (s *Server) tell(level slog.Level, msg string, args ...any) {
	s.lines.add(func() { s.log.Log(context.Background(), level, msg, args...) })
}
