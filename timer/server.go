package timer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
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

// A refusal is remembered for a while, since looking a process up takes far longer
// than reading a request.
type refusal struct {
	err   error
	until time.Time
}

const (
	refusalTime = 100 * time.Millisecond
	maxRefusals = 1024
)

// Stats counts what a server did since it was made.
type Stats struct {
	Lines     uint64 // complete lines that a FIFO brought
	Malformed uint64 // of them, those that are no request
	TooLong   uint64 // of those, the ones that were too long to look at
	Acquired  uint64 // timers started or moved
	Released  uint64 // requests to end a timer
	Refused   uint64 // requests for processes that are not there or not ours, or too many
	Expired   uint64 // timers
	Killed    uint64 // processes
	Lost      uint64 // events that a slow OnEvent never got

	Timers    int // live timers, those that never expire too
	Processes int // processes that are watched
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

// Run reaps until ctx is done, and returns after everything that it started has
// ended: Config.Reap and the events too. It emits EventStarted first and
// EventStopped last, and may be called once. The error is nil unless the server
// cannot start.
// Source: TimerServer.start and stop.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.state != fresh {
		s.mu.Unlock()
		return errors.New("timer server: Run was called before")
	}
	s.state = running
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

// Register takes requests in their order. Those that it refuses do not keep it from
// the others; the error joins a *RefusedError for each, of at most 16. A release
// never fails.
// Source: register_timers in file_based_local_timer.py.
func (s *Server) Register(requests []Request) error {
	var errs []error
	for _, r := range s.register(requests, 16) {
		errs = append(errs, &RefusedError{Request: r.request, Err: r.err})
	}
	return errors.Join(errs...)
}

type refusedRequest struct {
	request Request
	err     error
}

// register returns the first limit requests that it refuses. It keeps no scope of
// requests: their bytes may be reused.
func (s *Server) register(requests []Request, limit int) (bad []refusedRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range requests {
		r := &requests[i]
		p := s.lookUp(r.PID)
		if p == nil && !r.IsRelease() {
			var err error
			if p, err = s.admit(r.PID); err != nil {
				bad = s.refuse(bad, limit, r, err)
				continue
			}
		}
		if r.IsRelease() {
			s.stats.Released++
			if p != nil {
				s.release(p, r.ScopeID)
			}
			continue
		}
		if err := s.acquire(p, r); err != nil {
			bad = s.refuse(bad, limit, r, err)
		}
	}
	s.arm()
	return bad
}

func (s *Server) refuse(bad []refusedRequest, limit int, r *Request, err error) []refusedRequest {
	s.stats.Refused++
	if len(bad) < limit {
		kept := *r
		kept.ScopeID = strings.Clone(kept.ScopeID)
		bad = append(bad, refusedRequest{kept, err})
	}
	return bad
}

func (s *Server) lookUp(pid int) *process {
	if s.last != nil && s.last.handle.pid == pid {
		return s.last
	}
	p := s.procs[pid]
	if p != nil {
		s.last = p
	}
	return p
}

// admit enters a process that may have timers. It is called with the lock, which
// it gives up while it looks the process up.
func (s *Server) admit(pid int) (*process, error) {
	now := s.cfg.now()
	for {
		if s.state == stopped {
			return nil, fmt.Errorf("%w: the server has stopped", ErrNotOwned)
		}
		if old, ok := s.refused[pid]; ok && now.Before(old.until) && old.until.Sub(now) <= refusalTime {
			return nil, old.err
		}
		owns, attempt, bare := s.owns, s.attempt, s.cfg.bare || len(s.procs) >= maxPidfds
		s.mu.Unlock()
		h, err := open(pid, bare, owns)
		s.mu.Lock()
		if s.attempt != attempt || s.state == stopped { // ask the new owner
			h.close()
			continue
		}
		if err != nil {
			if len(s.refused) >= maxRefusals {
				clear(s.refused)
			}
			s.refused[pid] = refusal{err, now.Add(refusalTime)}
			return nil, err
		}
		return s.enter(h)
	}
}

// open returns a handle of a process that owns knows. The handle is opened before
// owns is asked, and still stands for a live process after: so it is owns' process
// that it names.
func open(pid int, bare bool, owns func(int) bool) (*handle, error) {
	if pid <= 0 || pid > math.MaxInt32 {
		return nil, fmt.Errorf("%w: pid %d: want a process number", ErrInvalid, pid)
	}
	h, err := openHandle(pid, bare)
	if err != nil {
		return nil, err
	}
	switch {
	case owns != nil && !owns(pid):
		err = ErrNotOwned
	case !h.alive():
		err = ErrNoProcess
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// enter adds a process, unless somebody else did meanwhile.
func (s *Server) enter(h *handle) (*process, error) {
	if p := s.procs[h.pid]; p != nil {
		h.close()
		return p, nil
	}
	if len(s.procs) >= max(s.tidyAt, maxPidfds, 1) {
		s.tidy()
	}
	if len(s.procs) >= maxProcesses {
		h.close()
		return nil, fmt.Errorf("%w: %d processes have some", ErrTooMany, len(s.procs))
	}
	s.handles++
	h.id = s.handles
	p := &process{handle: h, timers: map[string]*entry{}, at: -1}
	s.procs[h.pid] = p
	s.watch.add(h)
	return p, nil
}

// tidy forgets the processes without timers.
func (s *Server) tidy() {
	for _, p := range s.procs {
		if len(p.timers) == 0 && !p.reaping {
			s.drop(p)()
		}
	}
	s.tidyAt = 2 * len(s.procs)
}

// maxProcesses bounds how many processes may have timers: pid_max of most systems.
const maxProcesses = 1 << 22

func (s *Server) acquire(p *process, r *Request) error {
	if p.reaping {
		return nil
	}
	if r.Signal > maxSignal {
		return fmt.Errorf("%w: signal %d: want at most %d", ErrInvalid, int(r.Signal), maxSignal)
	}
	e := p.timers[r.ScopeID]
	if e == nil {
		switch {
		case len(r.ScopeID) > maxScope:
			return fmt.Errorf("%w: scope of %d bytes: want at most %d", ErrInvalid, len(r.ScopeID), maxScope)
		case s.stats.Timers >= s.cfg.MaxTimers:
			return fmt.Errorf("%w: %d run", ErrTooMany, s.stats.Timers)
		case s.scopes+len(r.ScopeID) > scopeShare*s.cfg.MaxTimers+maxScope:
			return fmt.Errorf("%w: their scopes have %d bytes", ErrTooMany, s.scopes)
		}
		s.seq++
		e = &entry{scope: strings.Clone(r.ScopeID), seq: s.seq, at: -1}
		p.timers[e.scope] = e
		p.most = max(p.most, len(p.timers))
		p.scopes += len(e.scope)
		s.scopes += len(e.scope)
		s.stats.Timers++
	}
	s.stats.Acquired++
	e.time, e.signal = r.ExpirationTime, int32(r.Signal)
	switch never := !(e.time < maxSeconds); {
	case never && e.at >= 0:
		p.heap.remove(int(e.at))
	case never:
		return nil
	case e.at >= 0:
		p.heap.fix(int(e.at), e.time)
	default:
		p.heap.push(slot[entry]{e.time, e.seq, e})
	}
	s.requeue(p)
	return nil
}

func (s *Server) release(p *process, scope string) {
	e := p.timers[scope]
	if e == nil {
		return
	}
	delete(p.timers, scope)
	p.scopes -= len(e.scope)
	s.scopes -= len(e.scope)
	s.stats.Timers--
	if e.at >= 0 {
		p.heap.remove(int(e.at))
		s.requeue(p)
	}
	if len(p.timers) > 0 || p.reaping {
		return
	}
	if p.handle.fd < 0 {
		s.drop(p)() // without a pidfd nobody tells when it ends
	} else if p.most > 1024 {
		p.timers, p.most = map[string]*entry{}, 0 // a map never gives memory back
	}
}

// requeue moves a process to where its first deadline belongs.
func (s *Server) requeue(p *process) {
	switch {
	case len(p.heap) == 0:
		if p.at >= 0 {
			s.queue.remove(p.at)
		}
	case p.at >= 0:
		s.queue.fix(p.at, p.heap[0].key)
	default:
		s.seq++
		s.queue.push(slot[process]{p.heap[0].key, s.seq, p})
	}
}

// arm has the alarm ring at the first deadline of all, or before.
func (s *Server) arm() {
	at := math.Inf(1)
	if len(s.queue) > 0 {
		at = s.queue[0].key
	}
	// An alarm that is early costs one wake-up. Moving it for each request costs a
	// system call, and most timers are released long before they expire.
	if !(at >= math.Float64frombits(s.first.Load())) {
		s.first.Store(math.Float64bits(at))
		s.alarm.set(at)
	}
}

// drop forgets a process and all its timers. What it returns is to be called
// without the lock, or where no time matters.
func (s *Server) drop(p *process) (free func()) {
	s.unload(p)
	p.gone = true
	if s.procs[p.handle.pid] == p {
		delete(s.procs, p.handle.pid)
	}
	if s.last == p {
		s.last = nil
	}
	if p.reaping {
		return func() {} // whoever reaps it closes the handle
	}
	return p.handle.close
}

// unload takes a process' timers away. It has no map for new ones then.
func (s *Server) unload(p *process) heap[entry, *entry] {
	if p.at >= 0 {
		s.queue.remove(p.at)
	}
	timers := p.heap
	s.stats.Timers -= len(p.timers)
	s.scopes -= p.scopes
	p.timers, p.heap, p.scopes = nil, nil, 0
	return timers
}

func (s *Server) dropAll() (free func()) {
	procs := s.procs
	s.procs, s.queue, s.last = map[int]*process{}, nil, nil
	clear(s.refused)
	s.stats.Timers, s.scopes = 0, 0
	s.arm()
	var idle []*handle
	for _, p := range procs {
		p.gone, p.at, p.timers, p.heap, p.scopes = true, -1, nil, nil, 0
		if !p.reaping { // else whoever reaps it closes the handle
			idle = append(idle, p.handle)
		}
	}
	return func() {
		for _, h := range idle {
			h.close()
		}
	}
}

// died is called when a process has ended.
func (s *Server) died(pid int, id int32) {
	s.mu.Lock()
	free := func() {}
	if p := s.procs[pid]; p != nil && p.handle.id == id {
		free = s.drop(p)
		s.arm()
	}
	s.mu.Unlock()
	free()
}

// Reset drops all timers and from now on asks owns (nil: every process is owned)
// instead of Config.Owns: it makes a server fit for the next attempt of a worker
// group, while those who write requests notice nothing. It emits EventStopped and
// EventStarted, as PyTorch's agent does, which makes a new server. Requests of
// workers that owns already knows are never lost; expiries under way are finished.
func (s *Server) Reset(owns func(pid int) bool) {
	s.emit(EventStopped, nil)
	s.mu.Lock()
	s.owns = owns
	s.attempt++
	free := s.dropAll()
	s.mu.Unlock()
	free()
	s.emit(EventStarted, nil)
}

// Clear drops all timers of processes, and of those that have ended.
// Source: clear_timers in file_based_local_timer.py.
func (s *Server) Clear(pids ...int) {
	s.mu.Lock()
	var frees []func()
	for _, pid := range pids {
		if p := s.procs[pid]; p != nil {
			frees = append(frees, s.drop(p))
		}
	}
	for _, p := range s.procs {
		// The watcher knows of the others.
		if (p.handle.fd < 0 || s.state != running) && !p.reaping && !p.handle.alive() {
			frees = append(frees, s.drop(p))
		}
	}
	s.arm()
	s.mu.Unlock()
	for _, free := range frees {
		free()
	}
}

// Expired returns the timers that expire at deadline or before, per process and in
// order of time. It changes nothing.
// Source: get_expired_timers in file_based_local_timer.py.
func (s *Server) Expired(deadline time.Time) map[int][]Request {
	limit := seconds(deadline)
	found := map[int][]Request{}
	s.mu.Lock()
	s.queue.until(limit, func(p *slot[process]) bool {
		pid := p.item.handle.pid
		p.item.heap.until(limit, func(e *slot[entry]) bool {
			found[pid] = append(found[pid], e.item.request(pid))
			return true
		})
		return true
	})
	s.mu.Unlock()
	for _, list := range found {
		slices.SortStableFunc(list, byTime)
	}
	return found
}

func byTime(a, b Request) int {
	if x, y := math.IsNaN(a.ExpirationTime), math.IsNaN(b.ExpirationTime); x || y {
		return cmp.Compare(btoi(x), btoi(y)) // never is last
	}
	return cmp.Compare(a.ExpirationTime, b.ExpirationTime)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A cursor is a place in a process' heap.
type cursor struct {
	p *process
	i int
}

func (c *cursor) place(int) {}

// soonest appends the limit timers that expire first.
func (s *Server) soonest(list []Request, limit int) []Request {
	var front heap[cursor, *cursor]
	push := func(p *process, i int) {
		if i < len(p.heap) {
			front.push(slot[cursor]{p.heap[i].key, p.heap[i].seq, &cursor{p, i}})
		}
	}
	for _, q := range s.queue {
		push(q.item, 0)
	}
	for len(front) > 0 && len(list) < limit {
		c := front.remove(0)
		list = append(list, c.p.heap[c.i].item.request(c.p.handle.pid))
		for child := 4*c.i + 1; child <= 4*c.i+4; child++ {
			push(c.p, child)
		}
	}
	return list
}

// Live returns at most limit live timers (0: all), those that expire first, in
// order of time; the ones that never do come last.
func (s *Server) Live(limit int) []Request {
	s.mu.Lock()
	all := limit <= 0 || limit >= s.stats.Timers
	if all {
		limit = s.stats.Timers
	}
	list := make([]Request, 0, limit)
	if !all {
		list = s.soonest(list, limit)
	}
	for pid, p := range s.procs {
		for _, e := range p.timers {
			if len(list) == limit {
				break
			}
			if all || e.at < 0 {
				list = append(list, e.request(pid))
			}
		}
	}
	s.mu.Unlock()
	slices.SortStableFunc(list, func(a, b Request) int {
		return cmp.Or(byTime(a, b), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ScopeID, b.ScopeID))
	})
	return list
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Processes = len(s.procs)
	st.Lost = uint64(s.events.lost())
	return st
}

// Progress is when the server last did all that it had to: now, unless a deadline
// has passed that it did not deal with, or it is still at it. A monitor that
// compares it with the time sees a server that hangs; like PyTorch's it tells
// nothing about the workers.
// Source: get_last_progress_time in file_based_local_timer.py.
func (s *Server) Progress() time.Time {
	now := s.cfg.now()
	if ended := s.ended.Load(); ended != 0 {
		return time.Unix(0, ended)
	}
	last := now
	if since := s.ringing.Load(); since != 0 && since < last.UnixNano() {
		last = time.Unix(0, since)
	}
	if first := math.Float64frombits(s.first.Load()); first < seconds(last) && s.running.Load() {
		last = time.Unix(0, int64(first*1e9))
	}
	return last
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
