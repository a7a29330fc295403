package kv

import (
	"container/list"
	"strings"
)

// A Notifier is told once, when what its Waiter waits for has happened.
type Notifier interface {
	// Fire is called with the map locked and must not block. If it returns
	// true, Deliver is called once the map is unlocked.
	Fire() bool
	// Deliver must not block either, but may do system calls.
	Deliver()
}

// A Waiter waits for one set of keys or one barrier. The zero value with a
// Notifier is ready; after it has fired or was cancelled it can be used again.
type Waiter struct {
	Notifier Notifier
	links    []link
	pending  int
	queue    *string // the queue whose push fired the waiter; nil: none did
}

// A link is one waiter's place among those of one key.
type link struct {
	waiter *Waiter
	at     *parked
	kind   kind
	place  *list.Element // in at.links; nil when not there
}

// A kind is what a link waits for.
type kind byte

const (
	forKey     kind = iota // the key, or a value in the queue, to exist
	forChange              // the value to be set or changed
	forBarrier             // the others at the barrier of that name
)

// parked are a key's waiters.
type parked struct {
	key   string
	links list.List // oldest first
}

// join puts a link of a waiter among those of a key.
func (m *Map) join(k *link, w *Waiter, key string, kind kind) {
	p := m.parked[key]
	if p == nil {
		p = &parked{key: strings.Clone(key)}
		m.parked[p.key] = p
	}
	*k = link{waiter: w, at: p, kind: kind, place: p.links.PushBack(k)}
}

// unlink takes a link out of its list, and the list out of the map if that was
// the last one.
func (m *Map) unlink(k *link) {
	if k.place == nil {
		return
	}
	k.at.links.Remove(k.place)
	k.place = nil
	if k.at.links.Len() == 0 {
		delete(m.parked, k.at.key)
	}
}

// Wait reports true if all keys exist; otherwise it parks the waiter until each
// of those that do not has been created. A key listed twice counts twice and is
// fulfilled by one creation.
func (m *Map) Wait(w *Waiter, keys ...string) bool {
	w.queue = nil
	missing := 0
	for _, key := range keys {
		if !m.Has(key) {
			missing++
		}
	}
	if missing == 0 {
		return true
	}
	w.links, w.pending = make([]link, missing), missing
	i := 0
	for _, key := range keys {
		if !m.Has(key) {
			m.join(&w.links[i], w, key, forKey)
			i++
		}
	}
	return false
}

// Barrier adds one to the number at the key and reports true if that makes n or
// more, waking everybody parked at the key; otherwise it parks the waiter.
// The first arrival wakes those that wait for the key to exist.
func (m *Map) Barrier(w *Waiter, key string, n int64) (bool, error) {
	arrived, err := m.add(key, 1)
	if err != nil {
		return false, err
	}
	if arrived >= n {
		m.wakeKey(key)
		return true, nil
	}
	m.wake(key, func(k *link) bool { return k.kind != forBarrier })
	m.park(w, key, forBarrier)
	return false, nil
}

// OnChange parks the waiter until the value of the key is set or changed.
func (m *Map) OnChange(w *Waiter, key string) { m.park(w, key, forChange) }

// OnPush parks the waiter until something is pushed to the queue, or the key of
// that name is set.
func (m *Map) OnPush(w *Waiter, key string) { m.park(w, key, forKey) }

func (m *Map) park(w *Waiter, key string, kind kind) {
	w.links, w.pending, w.queue = make([]link, 1), 1, nil
	m.join(&w.links[0], w, key, kind)
}

// Parked reports whether the waiter is waiting.
func (w *Waiter) Parked() bool { return w.pending > 0 }

// Cancel ends a wait, if it still continues. If a push to a queue had ended it
// and the value is still there, the next in line is woken in its place.
func (m *Map) Cancel(w *Waiter) {
	for i := range w.links {
		m.unlink(&w.links[i])
	}
	w.links, w.pending = nil, 0
	if queue := w.queue; queue != nil {
		w.queue = nil
		if m.queues[*queue] != nil {
			m.wakeOne(*queue)
		}
	}
}

// Popped notes that the waiter took a value from the queue.
func (w *Waiter) Popped(key string) {
	if w.queue != nil && *w.queue == key {
		w.queue = nil
	}
}

// fulfil takes one link out, and fires its waiter if it was the last awaited.
func (m *Map) fulfil(k *link) (fired bool) {
	w := k.waiter
	m.unlink(k)
	if w.pending--; w.pending > 0 {
		return false
	}
	w.links = nil
	if w.Notifier.Fire() {
		m.told = append(m.told, w.Notifier)
	}
	return true
}

// wake fulfils the links of a key that are due, oldest first.
func (m *Map) wake(key string, due func(*link) bool) {
	p := m.parked[key]
	if p == nil {
		return
	}
	for e := p.links.Front(); e != nil; {
		k := e.Value.(*link)
		e = e.Next() // fulfil takes out k, and no other
		if due(k) {
			m.fulfil(k)
		}
	}
}

func (m *Map) wakeKey(key string) { m.wake(key, func(*link) bool { return true }) }

// wakeOne counts a push to a queue for the waiters in line, oldest first, until
// one of them has nothing else to wait for. A key listed twice has two links, one after the other.
func (m *Map) wakeOne(key string) {
	p := m.parked[key]
	if p == nil {
		return
	}
	for e := p.links.Front(); e != nil; {
		k := e.Value.(*link)
		e = e.Next()
		if k.kind == forKey && m.fulfil(k) {
			k.waiter.queue = &p.key
			return
		}
	}
}
