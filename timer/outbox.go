package timer

import "sync"

// An outbox calls functions one after the other, in the order in which they were
// posted: a goroutine that posts one never waits for those before it.
type outbox struct {
	mu      sync.Mutex // guards the rest
	queue   []func()
	handing bool      // handOver runs; it does while there is something
	empty   sync.Cond // of mu: signalled when handOver has ended
}

// maxOutbox bounds how much waits.
const maxOutbox = 1 << 16

// post has f called. It returns false when too much waits.
func (o *outbox) post(f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxOutbox {
		return false
	}
	o.queue = append(o.queue, f)
	if !o.handing {
		o.handing = true
		go o.handOver()
	}
	return true
}

func (o *outbox) handOver() {
	o.mu.Lock()
	for len(o.queue) > 0 {
		batch := o.queue
		o.queue = nil
		o.mu.Unlock()
		for _, f := range batch {
			f()
		}
		o.mu.Lock()
	}
	o.handing = false
	o.empty.Broadcast()
	o.mu.Unlock()
}

// wait waits until all that was posted is done.
func (o *outbox) wait() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.handing {
		o.empty.Wait()
	}
}
