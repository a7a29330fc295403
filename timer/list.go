package timer

import (
	"cmp"
	"math"
	"slices"
	"time"
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
