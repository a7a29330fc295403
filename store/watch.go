//go:build unix

package store

import (
	"sync"
	"time"
)

// A watcher tells when a file may have changed.
type watcher interface {
	// add is called whenever somebody starts to wait, and once it has
	// returned no change is missed.
	add() error
	// next blocks until the file may have changed while somebody waits. It
	// returns false once the watcher is closed.
	next(waiting func() bool) bool
	close()
}

// A poller is a watcher that does not know and has the reader look at intervals,
// as long as somebody waits.
type poller struct {
	interval time.Duration
	started  chan struct{} // of one: somebody waits
	done     chan struct{}
	end      sync.Once
}

func newPoller(interval time.Duration) *poller {
	return &poller{interval: interval, started: make(chan struct{}, 1), done: make(chan struct{})}
}

func (p *poller) add() error {
	select {
	case p.started <- struct{}{}:
	default:
	}
	return nil
}

func (p *poller) next(waiting func() bool) bool {
	for !waiting() {
		select {
		case <-p.started:
		case <-p.done:
			return false
		}
	}
	timer := time.NewTimer(p.interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.done:
		return false
	}
}

func (p *poller) close() { p.end.Do(func() { close(p.done) }) }
