package health

import "time"

// DefaultPatience is how long a request waits for the Source.
const DefaultPatience = defaultPatience

// SetPatience changes that before the first request.
func (s *Server) SetPatience(d time.Duration) { s.shown.patience = d }

// SetOld changes how old an answer of another host may be, before the first request.
func (s *Server) SetOld(d time.Duration) { s.shown.old = d }
