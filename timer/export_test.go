package timer

import (
	"cmp"
	"slices"
	"time"
)

const PipeBuf = pipeBuf

// Plain makes servers of cfg use a Go timer in place of the kernel's: it works in a
// synctest bubble.
func Plain(cfg Config) Config {
	cfg.plain, cfg.bare = true, true
	return cfg
}

// Bare makes servers of cfg work without pidfds.
func Bare(cfg Config) Config {
	cfg.bare = true
	return cfg
}

// Descriptors makes servers of cfg use so many pidfds at most.
func Descriptors(cfg Config, n int) Config {
	cfg.fds = n
	return cfg
}

// WithClock gives servers of cfg another wall clock.
func WithClock(cfg Config, now func() time.Time) Config {
	cfg.now = now
	return cfg
}

// ParseRequest reads a line; ParseFast and ParseSlow are its two halves.
var (
	ParseRequest = parseRequest
	ParseFast    = parseFast
	ParseSlow    = parseSlow
)

// Read has the reader of a FIFO take pieces, one after the other, and returns how
// many bytes it keeps.
func Read(s *Server, pieces [][]byte) (stats Stats, left int) {
	f := &FileServer{path: "test", Server: s}
	r := newReader(f)
	for _, piece := range pieces {
		for len(piece) > 0 {
			n := copy(r.space(), piece)
			r.took(n)
			piece = piece[n:]
		}
	}
	return s.Stats(), r.have
}

// Entries is how many entries the heap of s has.
func Entries(s *Server) int { return len(s.timers.entries) }

// FromSeconds makes a time of what the wire carries.
var FromSeconds = fromSeconds

// Live returns at most limit live timers (0: all), those that expire first, in
// order of time; the ones that never do come last.
func (s *Server) Live(limit int) []Request {
	s.mu.Lock()
	live := slices.DeleteFunc(slices.Clone(s.timers.entries), func(e *entry) bool { return !e.live() })
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
