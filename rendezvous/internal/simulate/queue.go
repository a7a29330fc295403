package simulate

import (
	"time"
)

// A queue is virtual time: what will happen, and when. Times count from the
// beginning of the run.
type queue struct {
	heap  []event
	seq   uint64
	now   time.Duration
	steps int
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// at makes do happen at a time, or as soon as possible after it. What is to happen
// at one time happens in the order of the calls, at successive instants.
func (q *queue) at(t time.Duration, do func()) {
	q.seq++
	q.heap = append(q.heap, event{t, q.seq, do})
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(&q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// A timer is something that may yet be called off.
type timer struct {
	off bool
	do  func()
}

func (t *timer) stop() {
	if t != nil {
		t.off = true
	}
}

// after makes do happen in a while unless the timer is stopped.
func (q *queue) after(d time.Duration, do func()) *timer {
	t := &timer{do: do}
	q.at(q.now+d, func() {
		if !t.off {
			do()
		}
	})
	return t
}

// step makes the next event happen.
func (q *queue) step() {
	e := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
	q.now = max(e.at, q.now+1)
	q.steps++
	e.do()
}
