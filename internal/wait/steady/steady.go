// Package steady writes messages to a console without waiting for it for long.
package steady

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Writer writes what the program says to a console that may be stuck: a
// terminal stopped with Ctrl-S, a pager, a connection that hangs. Workers have to
// be watched and stopped meanwhile. So a Write waits for a second at most, and for
// the next ones not at all, until everything has got through. Order is kept.
// It may be used concurrently.
type Writer struct {
	W io.Writer

	mu    sync.Mutex // guards the rest; not held over writes
	queue [][]byte
	size  int           // bytes in queue
	lost  int           // writes that found no room
	late  bool          // a Write has waited as long as it may, without success
	idle  chan struct{} // closed when the queue is empty; nil: it is
}

const (
	// patience is how long a Write waits.
	patience = time.Second
	// capacity is how many bytes may wait.
	capacity = 4 << 20
)

// Write never fails: nobody could be told.
func (s *Writer) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.size+len(p) > capacity {
		s.lost++
		s.mu.Unlock()
		return len(p), nil
	}
	s.queue = append(s.queue, bytes.Clone(p))
	s.size += len(p)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.drain() // ends when everything is written, see Flush
	}
	late := s.late
	s.mu.Unlock()
	if !late && !s.Flush(patience) {
		s.mu.Lock()
		s.late = s.idle != nil
		s.mu.Unlock()
	}
	return len(p), nil
}

// drain writes until there is nothing left.
func (s *Writer) drain() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 && s.lost > 0 {
			s.queue = append(s.queue, fmt.Appendf(nil, "muster: messages missing here: %d; nothing could be written for a "+
				"while\n", s.lost))
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
		_, _ = s.W.Write(p)
		s.mu.Lock()
		s.size = max(s.size-len(p), 0)
		s.mu.Unlock()
	}
}

// Flush waits until everything is written, for limit at most unless that is 0, and
// reports whether it is.
func (s *Writer) Flush(limit time.Duration) bool {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return true
	}
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	select {
	case <-idle:
		return true
	case <-late:
		return false
	}
}
