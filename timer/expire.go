package timer

import (
	"context"
	"fmt"
	"log/slog"
	"math"

	"github.com/muster-run/muster/internal/format/pyjson"
)

// maxReported bounds how many expired timers of a process are looked at.
const maxReported = 10_000

// fire deals with everything that is due. The dispatcher calls it when the alarm
// rings, and the client that has registered something when that is late.
func (s *Server) fire() {
	s.mu.Lock()
	due, life := s.collect(seconds(s.cfg.now())), s.life
	s.reaping += len(due)
	s.mu.Unlock()
	for _, p := range due {
		s.expire(life, p, p.expiry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timers.tidy()
	s.armed = math.Inf(1) // it has rung
	s.arm()
}

// collect takes the timers that are due, and returns their processes, each with an
// expiry and without timers. The lock is held.
func (s *Server) collect(now float64) (due []*process) {
	for e := s.timers.first(); e != nil && e.deadline <= now; e = s.timers.first() {
		s.take(e)
		p := e.process
		if p.expiry == nil {
			p.expiry = &Expiry{PID: p.handle.pid, handle: p.handle}
			due = append(due, p)
		}
		p.expiry.Signal = max(e.request.Signal, 0)
		if p.expiry.Signal > 0 || len(p.expiry.Timers) < maxReported {
			p.expiry.Timers = append(p.expiry.Timers, e.request)
		}
		if p.expiry.Signal > 0 {
			s.dropTimers(p)
		}
	}
	for _, p := range due {
		s.dropTimers(p)
	}
	return due
}

// expire deals with a process of which timers have expired.
func (s *Server) expire(life context.Context, p *process, e *Expiry) {
	switch {
	case !p.handle.alive():
		s.finish(p, e, false)
	case e.Signal == 0:
		s.report(e)
		s.finish(p, e, false)
	case s.cfg.Reap == nil:
		err := e.Kill()
		s.report(e)
		s.finish(p, e, s.succeeded(e, err))
	default:
		s.report(e)
		go func() { s.finish(p, e, s.succeeded(e, s.cfg.Reap(life, e))) }()
	}
}

// maxShown is how many scopes of a process's expired timers the log names.
const maxShown = 8

// report tells of expired timers.
func (s *Server) report(e *Expiry) {
	for _, r := range e.Timers {
		s.emit(r, false)
	}
	last := e.Timers[len(e.Timers)-1]
	var scopes []string // the last ones: the last of all is what the process is ended for
	for _, r := range e.Timers[max(len(e.Timers)-maxShown, 0):] {
		scopes = append(scopes, clip(r.ScopeID, 256))
	}
	s.tell(slog.LevelWarn, "timers expired", "pid", e.PID, "count", len(e.Timers), "scope_ids", scopes,
		"expiration_time", pyjson.Float(last.Seconds()), "signal", int(e.Signal))
}

// succeeded tells of a process that was not killed, or that it was.
func (s *Server) succeeded(e *Expiry, err error) bool {
	if err != nil {
		s.tell(slog.LevelError, "process with expired timers was not killed", "pid", e.PID, "signal", int(e.Signal),
			"error", err)
		return false
	}
	s.tell(slog.LevelInfo, "process with expired timers was killed", "pid", e.PID, "signal", int(e.Signal))
	s.emit(e.Timers[len(e.Timers)-1], true)
	return true
}

// finish ends an expiry: the process may have timers again.
func (s *Server) finish(p *process, e *Expiry, killed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Expired += uint64(len(e.Timers))
	if killed {
		s.stats.Killed++
	}
	p.expiry = nil
	if p.gone {
		p.handle.close()
	}
	s.forgetIdle(p)
	s.reaping--
	s.reaped.Broadcast()
}

// Settle deals with what is due now, and waits until that is done and what Run has
// begun: Config.Reap has returned for every process that expired, and Config.OnExpiry
// and the log know; so neither of the two may call it. Run need not run.
// Source: run_once in file_based_local_timer.py.
func (s *Server) Settle() {
	s.fire()
	s.rest()
}

func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:n], len(text))
}
