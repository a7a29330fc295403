package timer

import "sync"

// A tally counts goroutines. Unlike with a sync.WaitGroup, they may be started
// while others wait.
type tally struct {
	mu   sync.Mutex // guards n
	n    int
	none sync.Cond // of mu; made by newTally
}

func newTally() *tally {
	t := &tally{}
	t.none.L = &t.mu
	return t
}

func (t *tally) Go(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.n--; t.n == 0 {
				t.none.Broadcast()
			}
		}()
		f()
	}()
}

func (t *tally) Wait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 {
		t.none.Wait()
	}
}

// maxEvents bounds how many events wait for a slow Config.OnEvent.
const maxEvents = 1 << 16

// An emitter calls a function for each event, in order, from a goroutine that
// exists only while there are events.
type emitter struct {
	call func(name string, r *Request)
	wg   *tally

	mu      sync.Mutex // guards the rest
	waiting []event
	running bool
	dropped int
}

type event struct {
	name    string
	request *Request
}

func (e *emitter) emit(name string, r *Request) {
	if e.call == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) >= maxEvents {
		e.dropped++
		return
	}
	e.waiting = append(e.waiting, event{name, r})
	if !e.running {
		e.running = true
		e.wg.Go(e.drain)
	}
}

func (e *emitter) drain() {
	for {
		e.mu.Lock()
		batch := e.waiting
		e.waiting = nil
		e.running = len(batch) > 0
		e.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, ev := range batch {
			e.call(ev.name, ev.request)
		}
	}
}

func (e *emitter) lost() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}
