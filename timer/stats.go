package timer

import (
	"maps"
	"slices"
	"time"
)

// Stats counts what a server did since it was made, for a metric or a page.
type Stats struct {
	Acquired uint64 // timers started or moved
	Released uint64 // requests to end a timer
	Refused  uint64 // requests for processes that are not there or not ours, or too many
	Expired  uint64 // timers
	Killed   uint64 // processes
	Lost     uint64 // calls that a slow OnExpiry never got

	Timers    int // live timers, those that never expire too
	Processes int // processes that are watched

	// FIFO is of the server's FileServers.
	FIFO struct {
		Lines     uint64 // complete lines
		Malformed uint64 // of them, those that are no request
		TooLong   uint64 // of those, the ones that were too long to look at
	}
	// Socket is of its SocketServers.
	Socket struct {
		Connected  uint64 // connections that were served
		Rejected   uint64 // connections that were not: another user's, or too many
		Requests   uint64 // packets read
		Malformed  uint64 // of them, those that are no request
		Refused    uint64 // of them, those that were refused
		Heartbeats uint64 // of them, heartbeats that counted

		Conns int // open now
	}
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Timers, st.Processes = s.timers.live(), len(s.procs)
	return st
}

// count changes the counts.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

// Progress is when the server last did all that it had to: now, unless a deadline
// has passed that it did not deal with, Config.Owns does not answer, Run does not run, or
// Serve of its FIFO or socket does not. A monitor that compares it with the time sees a
// server that hangs or that nobody runs; like PyTorch's it tells nothing about the workers.
// Source: get_last_progress_time in file_based_local_timer.py.
func (s *Server) Progress() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != running {
		return s.since.still
	}
	last := s.cfg.now()
	for _, since := range slices.Concat(slices.Collect(maps.Values(s.since.asking)), slices.Collect(maps.Values(s.since.idle))) {
		if since.Before(last) {
			last = since
		}
	}
	if e := s.timers.first(); e != nil && e.deadline < seconds(last) {
		last = time.Unix(0, int64(e.deadline*1e9))
	}
	return last
}
