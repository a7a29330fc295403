package timer

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

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
		owns, attempt, bare := s.owns, s.attempt, s.cfg.bare || len(s.procs) >= s.cfg.fds
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
	if len(s.procs) >= max(s.tidyAt, s.cfg.fds, 1) {
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
