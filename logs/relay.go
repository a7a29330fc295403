package logs

import (
	"context"
	"os"
	"sync"
	"time"
)

// A relay carries a worker's stderr to the console as it is, at once, and
// remembers the end of it. The worker's end is a terminal if the console is one.
// A console that takes nothing holds the worker up, as it would without a relay.
type relay struct {
	parent  *os.File
	console *console // nil: remembered only
	done    chan struct{}
	ending  func() // undoes what the terminal needs

	mu   sync.Mutex // guards the rest
	ring []byte     // the last bytes, at most TailSize; next is where it begins once full
	next int
}

func newRelay(c *console) (_ *relay, child *os.File, err error) {
	r := &relay{console: c, done: make(chan struct{}), ending: func() {}}
	if c != nil && c.terminal {
		if r.parent, child, err = openPTY(c.file); err == nil {
			r.ending = followWindowSize(c.file, r.parent)
			return r, child, nil
		}
	}
	if r.parent, child, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	return r, child, nil
}

func (r *relay) start() {
	go func() {
		defer close(r.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := r.parent.Read(buf)
			if n > 0 {
				r.remember(buf[:n])
				if r.console != nil {
					r.console.writeAll(buf[:n])
				}
			}
			if err != nil {
				return // the end, a terminal whose other side is closed (EIO), or finish
			}
		}
	}()
}

// finish returns when everything that was written has been carried. Processes
// that still hold the other end do not keep it waiting.
func (r *relay) finish(ctx context.Context) {
	// What is there is read before the deadline takes effect: a read that can
	// be satisfied at once is not subject to it only while it is in the future.
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-ctx.Done():
	case <-timer.C:
		_ = r.parent.SetReadDeadline(time.Now())
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
	r.ending()
	r.parent.Close()
}

// drainTime is how long a relay whose other end is still held goes on.
const drainTime = 100 * time.Millisecond

func (r *relay) remember(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) >= TailSize {
		r.ring, r.next = append(r.ring[:0], p[len(p)-TailSize:]...), 0
		return
	}
	if room := TailSize - len(r.ring); room > 0 {
		n := min(room, len(p))
		r.ring = append(r.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(r.ring[r.next:], p)
		p = p[n:]
		r.next = (r.next + n) % TailSize
	}
}

func (r *relay) tail() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append([]byte(nil), r.ring[r.next:]...), r.ring[:r.next]...)
}
