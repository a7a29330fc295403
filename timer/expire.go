package timer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"syscall"

	"github.com/muster-run/muster/internal/pyjson"
)

// maxReported bounds how many expired timers of a process are looked at.
const maxReported = 10_000

// fire deals with everything that is due. It is called when the alarm rings, and
// by readers that are busy, so that a flood of requests delays nothing.
func (s *Server) fire(ctx context.Context) (processes int) {
	s.wg.add(1)
	defer s.wg.add(-1)
	now := s.cfg.now()
	limit := seconds(now)
	s.ringing.CompareAndSwap(0, now.UnixNano())
	var due []*process
	var timers []heap[entry, *entry]
	s.mu.Lock()
	for len(s.queue) > 0 && s.queue[0].key <= limit {
		p := s.queue[0].item
		due = append(due, p)
		timers = append(timers, s.unload(p))
		p.timers, p.reaping = map[string]*entry{}, true
	}
	s.first.Store(math.Float64bits(math.NaN())) // a clockAlarm has to be set again in any case
	s.arm()
	s.mu.Unlock()
	for i, p := range due {
		s.expire(ctx, p, timers[i], limit)
	}
	s.ringing.Store(0)
	return len(due)
}

// due says whether fire has something to do.
func (s *Server) due() bool {
	return math.Float64frombits(s.first.Load()) <= seconds(s.cfg.now())
}

// expire deals with the timers of a process of which at least one is due. It owns
// them, and the process' handle.
func (s *Server) expire(ctx context.Context, p *process, timers heap[entry, *entry], limit float64) {
	pid := p.handle.pid
	e := &Expiry{PID: pid, handle: p.handle}
	for len(timers) > 0 && timers[0].key <= limit && e.Signal <= 0 && len(e.Timers) < maxReported {
		r := timers.remove(0).request(pid)
		e.Timers = append(e.Timers, r)
		if r.Signal > 0 {
			e.Signal = r.Signal
		}
	}
	if !p.handle.alive() {
		s.finish(p, e, nil, false)
		return
	}
	if e.Signal > 0 && s.cfg.Reap == nil {
		err := e.Kill()
		s.report(e)
		s.finish(p, e, err, err == nil)
		return
	}
	s.report(e)
	if e.Signal <= 0 {
		s.finish(p, e, nil, false)
		return
	}
	s.wg.Go(func() {
		err := s.cfg.Reap(ctx, e)
		s.finish(p, e, err, err == nil)
	})
}

// maxShown is how many scopes of a process's expired timers the log names.
const maxShown = 8

// report tells of expired timers.
func (s *Server) report(e *Expiry) {
	for i := range e.Timers {
		s.emit(EventExpired, &e.Timers[i])
	}
	last := e.Timers[len(e.Timers)-1]
	var scopes []string // the last ones: the last of all is what the process is ended for
	for _, r := range e.Timers[max(len(e.Timers)-maxShown, 0):] {
		scopes = append(scopes, clip(r.ScopeID, 256))
	}
	s.tell(slog.LevelWarn, "timers expired", "pid", e.PID, "count", len(e.Timers), "scope_ids", scopes,
		"expiration_time", pyjson.Float(last.ExpirationTime), "signal", int(e.Signal))
}

// finish ends the reaping of a process.
func (s *Server) finish(p *process, e *Expiry, err error, killed bool) {
	if err != nil {
		s.tell(slog.LevelError, "process with expired timers was not killed", "pid", e.PID, "signal", int(e.Signal), "error", err)
	}
	if killed {
		s.emit(EventKill, &e.Timers[len(e.Timers)-1])
	}
	s.mu.Lock()
	s.stats.Expired += uint64(len(e.Timers))
	if killed {
		s.stats.Killed++
	}
	p.reaping = false
	if !p.gone && p.handle.fd < 0 {
		s.drop(p)
	}
	gone := p.gone
	s.mu.Unlock()
	if gone {
		p.handle.close()
	}
}

// Reap sends a signal to a process that has timers here, or had some and lives,
// and drops its timers. The error is ErrNoProcess when there is no such process.
// Source: _reap_worker in file_based_local_timer.py.
func (s *Server) Reap(pid int, sig syscall.Signal) error {
	s.mu.Lock()
	p := s.procs[pid]
	if p == nil || p.reaping {
		s.mu.Unlock()
		if p != nil {
			return nil // it is under way
		}
		return fmt.Errorf("reap process %d: %w with timers", pid, ErrNoProcess)
	}
	s.unload(p)
	p.timers, p.reaping = map[string]*entry{}, true
	s.arm()
	s.mu.Unlock()
	err := p.handle.send(sig)
	s.mu.Lock()
	p.reaping = false
	gone := p.gone
	s.mu.Unlock()
	if gone {
		p.handle.close()
	}
	return err
}

// RunOnce reaps what is due now, and returns how many processes that were. It waits
// until that is done, and what Run has begun: Config.Reap has returned for every
// process that expired, and Config.OnEvent knows. Run need not run.
// Source: run_once in file_based_local_timer.py.
func (s *Server) RunOnce(ctx context.Context) (int, error) {
	s.mu.Lock()
	over := s.state == stopped
	s.mu.Unlock()
	if over {
		return 0, errors.New("timer server: it has stopped")
	}
	n := s.fire(ctx)
	s.wg.Wait()
	return n, nil
}

func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:n], len(text))
}
