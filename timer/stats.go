package timer

import (
	"cmp"
	"slices"
	"time"
)

// Stats counts what a server did since it was made.
type Stats struct {
	Acquired uint64 // timers started or moved
	Released uint64 // requests to end a timer
	Refused  uint64 // requests for processes that are not there or not ours, or too many
	Expired  uint64 // timers
	Killed   uint64 // processes
	Lost     uint64 // events that a slow OnEvent never got

	Timers    int // live timers, those that never expire too
	Processes int // processes that are watched
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Timers, st.Processes = s.timers.live(), len(s.procs)
	return st
}

// Live returns at most limit live timers (0: all), those that expire first, in
// order of time; the ones that never do come last.
func (s *Server) Live(limit int) []Request {
	s.mu.Lock()
	live := s.timers.all()
	s.mu.Unlock()
	slices.SortFunc(live, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.request.PID, b.request.PID),
			cmp.Compare(a.request.ScopeID, b.request.ScopeID))
	})
	if limit > 0 && limit < len(live) {
		live = live[:limit]
	}
	list := make([]Request, len(live))
	for i, e := range live {
		list[i] = e.request
	}
	return list
}

// Progress is when the server last did all that it had to: now, unless a deadline
// has passed that it did not deal with, or Config.Owns does not answer. A monitor that
// compares it with the time sees a server that hangs; like PyTorch's it tells
// nothing about the workers.
// Source: get_last_progress_time in file_based_local_timer.py.
func (s *Server) Progress() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stopped {
		return s.ended
	}
	last := s.cfg.now()
	for _, since := range s.asking {
		if since.Before(last) {
			last = since
		}
	}
	if e := s.timers.first(); e != nil && s.state == running && e.deadline < seconds(last) {
		last = time.Unix(0, int64(e.deadline*1e9))
	}
	return last
}
