package timer

import "container/heap"

// An entry is a timer. It does not change, but for its place in the heap.
type entry struct {
	process    *process
	generation int // the process's, when the timer was acquired
	request    Request
	deadline   float64 // +Inf: never
	seq        uint64  // decides between equal deadlines: the older first
	index      int     // in the heap
}

// live reports whether the timer was not dropped with all others of its process.
func (e *entry) live() bool { return e.generation == e.process.generation }

// A timeline has every live timer, the first deadline first. What a process had when
// its timers were dropped stays until tidy: so a process is dropped at once, with
// however many timers. The server's lock guards it.
type timeline struct {
	entries entries
	stale   int // how many of the entries are not live
	seq     uint64
}

func (t *timeline) add(e *entry) {
	t.seq++
	e.seq = t.seq
	heap.Push(&t.entries, e)
}

func (t *timeline) remove(e *entry) { heap.Remove(&t.entries, e.index) }

// first returns the live timer with the first deadline, or nil.
func (t *timeline) first() *entry {
	for len(t.entries) > 0 {
		if e := t.entries[0]; e.live() {
			return e
		}
		if !t.tidy() {
			heap.Pop(&t.entries)
			t.stale--
		}
	}
	return nil
}

// So many stale entries first passes over in less than a millisecond.
const fewStale = 1024

// tidy takes the stale entries out, if they are too many to pass over.
func (t *timeline) tidy() bool {
	if t.stale <= max(fewStale, len(t.entries)/16) {
		return false
	}
	all, live := t.entries, t.live()
	t.entries, t.stale = make(entries, 0, live), 0
	for i := 0; i < len(all) && len(t.entries) < live; i++ {
		if all[i].live() {
			t.entries.Push(all[i])
		}
	}
	heap.Init(&t.entries)
	return true
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

func (h entries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *entries) Push(e any) {
	e.(*entry).index = len(*h)
	*h = append(*h, e.(*entry))
}

func (h *entries) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
