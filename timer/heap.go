package timer

import "container/heap"

// An entry is a timer. It does not change, except that released is set under the
// server's lock.
type entry struct {
	process    *process
	generation int // the process's, when the timer was acquired
	request    Request
	deadline   float64 // +Inf: never
	seq        uint64  // decides between equal deadlines: the older first
	released   bool    // or moved: another entry is in its place
}

// live says whether the timer runs.
func (e *entry) live() bool { return !e.released && e.generation == e.process.generation }

// A timeline has every live timer once, the first deadline first, and what is left of
// timers that were released, moved or dropped: to take such an entry out at once
// costs more than to pass over it later. Such stale entries are the lesser part.
type timeline struct {
	entries entries
	stale   int // how many of the entries are not live
	seq     uint64
}

// fewStale is how many stale entries are never worth a sweep.
const fewStale = 1024

func (t *timeline) add(e *entry) {
	t.seq++
	e.seq = t.seq
	heap.Push(&t.entries, e)
}

// first returns the live timer with the first deadline, or nil. It removes the stale
// entries before that.
func (t *timeline) first() *entry {
	for len(t.entries) > 0 {
		if e := t.entries[0]; e.live() {
			return e
		}
		heap.Pop(&t.entries)
		t.stale--
	}
	return nil
}

// removeFirst removes what first returned.
func (t *timeline) removeFirst() { heap.Pop(&t.entries) }

// spoil counts n entries that have become stale, and sweeps them out once they are
// the greater part.
func (t *timeline) spoil(n int) {
	if t.stale += n; t.stale <= fewStale || t.stale <= len(t.entries)/2 {
		return
	}
	t.entries, t.stale = t.all(2*t.live()), 0
	heap.Init(&t.entries)
}

// all returns the live timers, in no order and with room for more.
func (t *timeline) all(room int) entries {
	live := make(entries, 0, room)
	for _, e := range t.entries {
		if e.live() {
			live = append(live, e)
		}
	}
	return live
}

// live is how many timers run.
func (t *timeline) live() int { return len(t.entries) - t.stale }

// entries is a heap.Interface.
type entries []*entry

func (h entries) Len() int { return len(h) }

func (h entries) Less(i, j int) bool {
	a, b := h[i], h[j]
	return a.deadline < b.deadline || a.deadline == b.deadline && a.seq < b.seq
}

func (h entries) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *entries) Push(e any) { *h = append(*h, e.(*entry)) }

func (h *entries) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
