package cli

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/muster-run/muster/launch"
)

// A steadyWriter writes what the program says to a console that may be stuck: a
// terminal stopped with Ctrl-S, a pager, a connection that hangs. Workers have to
// be watched and stopped meanwhile. So a Write waits for a second at most, and for
// the next ones not at all, until everything has got through. Order is kept.
// It may be used concurrently.
type steadyWriter struct {
	w io.Writer

	mu    sync.Mutex // guards the rest; not held over writes
	queue [][]byte
	size  int           // bytes in queue
	lost  int           // writes that found no room
	late  bool          // a Write has waited in vain
	idle  chan struct{} // closed when the queue is empty; nil: it is
}

const (
	// steadyPatience is how long a Write waits.
	steadyPatience = time.Second
	// steadyRoom is how many bytes may wait.
	steadyRoom = 4 << 20
)

// Write never fails: nobody could be told.
func (s *steadyWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.size+len(p) > steadyRoom {
		s.lost++
		s.mu.Unlock()
		return len(p), nil
	}
	s.queue = append(s.queue, bytes.Clone(p))
	s.size += len(p)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.drain() // ends when everything is written, see flush
	}
	late := s.late
	s.mu.Unlock()
	if !late && !s.flush(steadyPatience) {
		s.mu.Lock()
		s.late = s.idle != nil
		s.mu.Unlock()
	}
	return len(p), nil
}

// drain writes until there is nothing left.
func (s *steadyWriter) drain() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 && s.lost > 0 {
			s.queue = append(s.queue, fmt.Appendf(nil, "muster: %d messages are missing here: nothing could be written for a while\n", s.lost))
			s.lost = 0
		}
		if len(s.queue) == 0 {
			close(s.idle)
			s.idle, s.late, s.size = nil, false, 0
			s.mu.Unlock()
			return
		}
		p := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		_, _ = s.w.Write(p)
		s.mu.Lock()
		s.size = max(s.size-len(p), 0)
		s.mu.Unlock()
	}
}

// flush waits until everything is written, for limit at most unless that is 0, and
// says whether it is.
func (s *steadyWriter) flush(limit time.Duration) bool {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return true
	}
	if limit == 0 {
		<-idle
		return true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// said returns where cfg's logger writes, so that what is said otherwise keeps the
// order.
func said(cfg launch.Config) *steadyWriter {
	if cfg.Logger != nil {
		if h, ok := cfg.Logger.Handler().(*logHandler); ok {
			return h.out
		}
	}
	if cfg.Stderr == nil {
		return &steadyWriter{w: io.Discard}
	}
	return &steadyWriter{w: cfg.Stderr}
}
