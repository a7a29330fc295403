package timer

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/host/pidwatch"
)

// A Server keeps timers and reaps the processes whose timers expire. Timers run out while Run
// does; what is registered before is kept for it. A program that wants a server with its queue,
// FIFO or socket uses StartLocal, StartFIFO or StartSocket; otherwise it makes one with NewServer,
// calls Run, feeds it with Register or through ListenFIFO and ListenSocket, and calls Close. Its
// methods may be called concurrently.
// Source: TimerServer in api.py.
type Server struct {
	cfg    Config        // Owns is guarded by mu
	alarm  alarm         // set with mu held
	watch  *pidwatch.Set // tells when processes end; nil where nothing does
	outbox outbox        // what the log and Config.OnExpiry are still to get

	call  life          // of Run
	begun chan struct{} // closed when Run is called, or Close before it

	// mu guards the rest. It is never held while a process is looked up, Config.Owns
	// is asked, a signal is sent, or somebody else's function is called.
	mu      sync.Mutex
	state   state
	life    context.Context // of Run; Config.Reap gets it
	since   since
	procs   map[int]*process // those that Config.Owns knew when they came, in this attempt
	attempt int              // counts Reset: an answer of Config.Owns holds for one attempt
	lastID  uint32           // of a process
	timers  timeline         // of all processes
	armed   float64          // when the alarm goes off next, +Inf: never. It may be early, never late
	scopes  int              // bytes of the live timers' scopes
	stats   Stats
	reaping int       // expiries under way
	reaped  sync.Cond // of mu: signalled when one has ended
}

// since is since when something does not go on, for Progress.
type since struct {
	still  time.Time         // the server, while its state is not running
	asking map[int]time.Time // the look-up of a process
	idle   map[any]time.Time // a FIFO or a socket, which is not served
}

type state int

const (
	fresh state = iota
	running
	stopped
)

// A process has, or had, timers. The server's lock guards it.
type process struct {
	id     uint32 // tells apart processes that had the same number
	handle *handle
	timers map[string]*entry // the live ones, by scope
	most   int               // timers at a time, since the map was made
	scopes int               // bytes of their scopes

	generation int     // goes up when all timers are dropped
	expiry     *Expiry // while one is under way: it owns handle, and requests are dropped
	gone       bool    // no longer in Server.procs
}

// NewServer checks cfg and returns a server for Run to run. The caller calls
// Run or Close. All that is wrong with cfg is reported together.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:   cfg,
		alarm: newAlarm(cfg),
		life:  context.Background(),
		procs: map[int]*process{},
		since: since{still: cfg.now(), asking: map[int]time.Time{}, idle: map[any]time.Time{}},
		begun: make(chan struct{}),
		armed: math.Inf(1),
	}
	s.outbox.empty.L, s.reaped.L = &s.outbox.mu, &s.mu
	if !cfg.bare {
		if s.watch, err = pidwatch.New(); err != nil {
			s.cfg.bare = true // a pidfd would stay for as long as the server
			s.tell(slog.LevelInfo, "timers of processes that ended stay until they expire", "error", err)
		}
	}
	return s, nil
}

// Run reaps until ctx is done, and returns after everything that it started has
// ended: Config.Reap and Config.OnExpiry too. It may be called once. The error is nil unless it
// was called before, or Close. Close ends it, too.
// Source: TimerServer.start and stop.
func (s *Server) Run(ctx context.Context) error {
	return s.call.run(ctx, "timer server: Run or Close was called before", func(ctx context.Context) error {
		s.begin(ctx)
		s.run(ctx)
		return nil
	})
}

// begin makes Run's context the server's.
func (s *Server) begin(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.life = running, ctx
	close(s.begun)
}

// run is Run, after begin.
func (s *Server) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for s.alarm.wait() {
			s.fire()
		}
	})
	if s.watch != nil {
		wg.Go(func() { s.watch.Run(s.died) })
	}
	<-ctx.Done()
	s.mu.Lock()
	s.shut()
	s.mu.Unlock()
	wg.Wait()
	s.rest()
}

// Close ends Run and waits for it, so Config.Reap and Config.OnExpiry must not call it. Without
// Run, it frees what NewServer made. It may be called again.
func (s *Server) Close() error {
	if s.call.close() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.begun)
		s.shut()
	}
	return nil
}

// shut drops what there is; nothing is registered any more. The lock is held.
func (s *Server) shut() {
	s.state, s.since.still = stopped, s.cfg.now()
	s.forgetAll()
	s.alarm.close()
	if s.watch != nil {
		s.watch.Close()
	}
}

// Reset drops all timers and from now on asks owns (nil: every process is owned)
// instead of Config.Owns: it makes a server fit for the next attempt of a worker
// group, while those who write requests notice nothing. (PyTorch's agent makes a new
// server.) Requests of workers that owns already knows are never lost; expiries under way are finished.
func (s *Server) Reset(owns func(pid int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Owns = owns
	s.attempt++
	s.forgetAll()
}

// Clear drops all timers of these processes. An expiry under way is finished.
// Source: clear_timers in local_timer.py.
func (s *Server) Clear(pids ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range pids {
		if p := s.procs[pid]; p != nil {
			s.dropTimers(p)
			s.forgetIdle(p)
		}
	}
	s.timers.tidy()
}

// Expired returns the live timers whose deadline is not after the given one, by process and in
// order of time. The server takes out those that are due by itself.
// Source: get_expired_timers in local_timer.py.
func (s *Server) Expired(deadline time.Time) map[int][]Request {
	s.mu.Lock()
	live := slices.DeleteFunc(slices.Clone(s.timers.entries), func(e *entry) bool {
		return !e.live() || e.deadline > seconds(deadline)
	})
	s.mu.Unlock()
	slices.SortFunc(live, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.seq, b.seq))
	})
	expired := map[int][]Request{}
	for _, e := range live {
		expired[e.request.PID] = append(expired[e.request.PID], e.request)
	}
	return expired
}

// forgetAll forgets all processes. The lock is held.
func (s *Server) forgetAll() {
	for _, p := range s.procs {
		s.forget(p)
	}
	s.timers = timeline{seq: s.timers.seq}
}

// forget drops a process' timers, and the process unless an expiry needs it: then
// finish does. The lock is held.
func (s *Server) forget(p *process) {
	s.dropTimers(p)
	s.timers.tidy()
	delete(s.procs, p.handle.pid)
	p.gone = true
	if p.expiry == nil {
		p.handle.close()
	}
}

// dropTimers drops a process' timers. It leaves tidying up to its caller. The lock is
// held.
func (s *Server) dropTimers(p *process) {
	s.timers.stale += len(p.timers)
	s.scopes -= p.scopes
	p.generation++
	p.timers, p.most, p.scopes = map[string]*entry{}, 0, 0
}

// key names the process for watch.
func (p *process) key() uint64 { return uint64(p.id)<<32 | uint64(p.handle.pid) }

// died is called when a process has ended.
func (s *Server) died(key uint64) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[int(uint32(key))]; p != nil && p.key() == key {
		s.forget(p)
	}
	return true
}

// emit has Config.OnExpiry called.
func (s *Server) emit(r Request, killed bool) {
	if s.cfg.OnExpiry != nil && !s.outbox.post(func() { s.cfg.OnExpiry(r, killed) }) {
		s.count(func(st *Stats) { st.Lost++ })
	}
}

// tell logs without waiting for the reader of the log.
func (s *Server) tell(level slog.Level, msg string, args ...any) {
	s.outbox.post(func() { s.cfg.Logger.Log(context.Background(), level, msg, args...) })
}

// rest waits until no expiry is under way, and the log and Config.OnExpiry know all.
func (s *Server) rest() {
	s.mu.Lock()
	for s.reaping > 0 {
		s.reaped.Wait()
	}
	s.mu.Unlock()
	s.outbox.wait()
}
