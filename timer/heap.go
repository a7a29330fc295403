package timer

// A heap is a min-heap with four children a node, which touches fewer cache lines
// than two. Each thing knows its place, so that it can be moved and removed.
type heap[T any, P placed[T]] []slot[T]

// A slot holds what is compared beside the pointer: most comparisons follow none.
type slot[T any] struct {
	key  float64
	seq  uint64 // decides between equal keys: the older first
	item *T
}

// A placed thing remembers its index in the heap; it is -1 outside of one.
type placed[T any] interface {
	*T
	place(i int)
}

func (a *slot[T]) before(b *slot[T]) bool {
	return a.key < b.key || a.key == b.key && a.seq < b.seq
}

func (h *heap[T, P]) push(s slot[T]) {
	*h = append(*h, s)
	h.up(len(*h) - 1)
}

// fix moves the thing at i to where its new key belongs.
func (h *heap[T, P]) fix(i int, key float64) {
	s := *h
	if old := s[i].key; key < old {
		s[i].key = key
		h.up(i)
	} else if key > old {
		s[i].key = key
		h.down(i)
	}
}

// remove takes the thing at i out.
func (h *heap[T, P]) remove(i int) *T {
	s := *h
	last := len(s) - 1
	item := s[i].item
	moved := s[last]
	s[last] = slot[T]{}
	*h = s[:last]
	if i < last {
		down := s[i].before(&moved)
		s[i] = moved
		if down {
			h.down(i)
		} else {
			h.up(i)
		}
	}
	P(item).place(-1)
	if last < cap(s)/4 && cap(s) > 1024 {
		*h = append(make(heap[T, P], 0, cap(s)/2), s[:last]...)
	}
	return item
}

func (h heap[T, P]) up(i int) {
	s := h[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !s.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		P(h[i].item).place(i)
		i = parent
	}
	h[i] = s
	P(s.item).place(i)
}

func (h heap[T, P]) down(i int) {
	s := h[i]
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		best := child
		for c := child + 1; c < min(child+4, len(h)); c++ {
			if h[c].before(&h[best]) {
				best = c
			}
		}
		if !h[best].before(&s) {
			break
		}
		h[i] = h[best]
		P(h[i].item).place(i)
		i = best
	}
	h[i] = s
	P(s.item).place(i)
}

// until calls visit for each slot whose key is at most limit, in no order, until
// that says false.
func (h heap[T, P]) until(limit float64, visit func(*slot[T]) bool) { h.walk(0, limit, visit) }

func (h heap[T, P]) walk(i int, limit float64, visit func(*slot[T]) bool) bool {
	if i >= len(h) || !(h[i].key <= limit) {
		return true
	}
	if !visit(&h[i]) {
		return false
	}
	for c := 4*i + 1; c < min(4*i+5, len(h)); c++ {
		if !h.walk(c, limit, visit) {
			return false
		}
	}
	return true
}
