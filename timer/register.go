package timer

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Register takes requests in their order. Those that it refuses do not keep it from
// the others; the error joins those of at most 16, each of which wraps ErrInvalid,
// ErrNotOwned, ErrTooMany or, of a process that does not exist, syscall.ESRCH. A release
// never fails.
// Source: register_timers in file_based_local_timer.py.
func (s *Server) Register(requests []Request) error {
	var errs []error
	for _, bad := range s.register(requests, 16) {
		errs = append(errs, bad)
	}
	return errors.Join(errs...)
}

// register returns the first limit requests that it refuses. It deals with what is
// due before it returns: so a flood of requests delays nobody's deadline.
func (s *Server) register(requests []Request, limit int) (refused []*refusal) {
	s.mu.Lock()
	for _, r := range requests {
		var err error
		if r.IsRelease() {
			s.release(r)
		} else if err = s.acquire(r); err != nil {
			s.stats.Refused++
		}
		if err != nil && len(refused) < limit {
			refused = append(refused, &refusal{r, err})
		}
	}
	s.arm()
	due := s.state == running && s.armed <= seconds(s.cfg.now())
	s.mu.Unlock()
	if due {
		s.fire()
	}
	return refused
}

// arm has the alarm ring at the first deadline of all, or before: moving it for each
// request costs a system call, and most timers are released long before they expire.
// The lock is held.
func (s *Server) arm() {
	if e := s.timers.first(); e != nil && e.deadline < s.armed {
		s.armed = e.deadline
		s.alarm.set(e.deadline)
	}
}

// acquire starts or moves a timer. The lock is held, but for admit.
func (s *Server) acquire(r Request) error {
	p, err := s.admit(r.PID)
	if err != nil || p.expiry != nil {
		return err
	}
	defer s.forgetIdle(p)
	if r.Signal > maxSignal {
		return fmt.Errorf("%w: signal %d: want at most %d", ErrInvalid, int(r.Signal), maxSignal)
	}
	old := p.timers[r.ScopeID]
	switch n := len(r.ScopeID); {
	case old != nil:
		r.ScopeID = old.request.ScopeID
		s.timers.remove(old)
	case n > maxScope:
		return fmt.Errorf("%w: scope of %d bytes: want at most %d", ErrInvalid, n, maxScope)
	case s.timers.live() >= s.cfg.MaxTimers:
		return fmt.Errorf("%w: %d run", ErrTooMany, s.timers.live())
	case s.scopes+n > scopeShare*s.cfg.MaxTimers+maxScope:
		return fmt.Errorf("%w: their scopes have %d bytes", ErrTooMany, s.scopes)
	default:
		r.ScopeID = strings.Clone(r.ScopeID) // it may be a part of something large
		p.scopes += n
		s.scopes += n
	}
	e := &entry{process: p, generation: p.generation, request: r, deadline: r.Seconds()}
	if !(e.deadline < maxSeconds) {
		e.deadline = math.Inf(1)
	}
	p.timers[r.ScopeID] = e
	p.most = max(p.most, len(p.timers))
	s.timers.add(e)
	s.stats.Acquired++
	return nil
}

// release ends a timer, if there is one. The lock is held.
func (s *Server) release(r Request) {
	s.stats.Released++
	p := s.procs[r.PID]
	if p == nil {
		return
	}
	if e := p.timers[r.ScopeID]; e != nil {
		s.take(e)
		s.forgetIdle(p)
	}
}

// manyTimers is how many timers a map has had that is made anew when it is empty.
const manyTimers = 1024

// take takes a live timer out. The lock is held.
func (s *Server) take(e *entry) {
	p, n := e.process, len(e.request.ScopeID)
	s.timers.remove(e)
	delete(p.timers, e.request.ScopeID)
	p.scopes -= n
	s.scopes -= n
	if len(p.timers) == 0 && p.most > manyTimers { // a map never gives memory back
		p.timers, p.most = map[string]*entry{}, 0
	}
}

// forgetIdle forgets a process without timers whose end nobody would report. The
// lock is held.
func (s *Server) forgetIdle(p *process) {
	if len(p.timers) == 0 && p.handle.fd < 0 && p.expiry == nil && !p.gone {
		s.forget(p)
	}
}

// owned reports whether a process may have timers here.
func (s *Server) owned(pid int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.admit(pid)
	if err == nil {
		s.forgetIdle(p)
	}
	return err
}

// admit returns a process that may have timers. It is called with the lock, which
// it gives up while it looks up a process that it does not know.
func (s *Server) admit(pid int) (*process, error) {
	for {
		if p := s.procs[pid]; p != nil {
			return p, nil
		}
		if s.state == stopped {
			return nil, fmt.Errorf("%w: the server has stopped", ErrNotOwned)
		}
		owns, attempt, bare := s.cfg.Owns, s.attempt, s.cfg.bare || len(s.procs) >= s.cfg.fds
		s.since.asking[pid] = s.cfg.now()
		s.arm() // for what was registered before this: the look may take long
		s.mu.Unlock()
		h, err := identify(pid, bare, owns)
		s.mu.Lock()
		delete(s.since.asking, pid)
		if s.attempt != attempt || s.state == stopped || s.procs[pid] != nil {
			h.close() // ask the new owner, or somebody was faster
			continue
		}
		if err != nil {
			return nil, err
		}
		s.lastID++
		p := &process{id: s.lastID, handle: h, timers: map[string]*entry{}}
		s.procs[pid] = p
		if s.watch != nil && h.fd >= 0 {
			_ = s.watch.Add(h.fd, p.key())
		}
		return p, nil
	}
}

// identify returns a handle of a process that owns knows. The handle is opened before
// owns is asked, and still stands for a live process after: so it is owns' process
// that it names.
func identify(pid int, bare bool, owns func(int) bool) (*handle, error) {
	if pid <= 0 || pid > math.MaxInt32 {
		return nil, fmt.Errorf("%w: pid %d: want a process number", ErrInvalid, pid)
	}
	h, err := openHandle(pid, bare)
	switch {
	case err != nil:
		return nil, err
	case owns != nil && !owns(pid):
		err = ErrNotOwned
	case !h.alive():
		err = errNoProcess
	default:
		return h, nil
	}
	h.close()
	return nil, err
}
