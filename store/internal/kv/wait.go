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

// A link is one waiter's place in one key's list, oldest first.
type link struct {
	waiter *Waiter
	at     *parked
	list   *list.List // nil when not in any
	place  *list.Element
}

func (k *link) appendTo(l *list.List) { k.list, k.place = l, l.PushBack(k) }

// first returns the oldest link of a list, nil if it is empty.
func first(l *list.List) *link {
	if e := l.Front(); e != nil {
		return e.Value.(*link)
	}
	return nil
}

// parked are a key's waiters.
type parked struct {
	key      string
	keys     list.List // wait for the key, or for a value in the queue, to exist
	changes  list.List // wait for the value to be set or changed
	barriers list.List // arrived at the barrier of that name
}

func (p *parked) empty() bool {
	return p.keys.Len()+p.changes.Len()+p.barriers.Len() == 0
}

func (m *Map) parkedAt(key string) *parked {
	p := m.parked[key]
	if p == nil {
		p = &parked{key: strings.Clone(key)}
		m.parked[p.key] = p
	}
	return p
}

// unlink takes a link out of its list, and the list out of the map if that was
// the last one.
func (m *Map) unlink(k *link) {
	if k.list == nil {
		return
	}
	k.list.Remove(k.place)
	k.list = nil
	if k.at.empty() {
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
		if m.Has(key) {
			continue
		}
		p := m.parkedAt(key)
		w.links[i] = link{waiter: w, at: p}
		w.links[i].appendTo(&p.keys)
		i++
	}
	return false
}

// Barrier adds one to the number at the key and reports true if that makes n or
// more, waking everybody parked at the key; otherwise it parks the waiter.
// Whoever waits for the key to exist is woken by the first arrival.
func (m *Map) Barrier(w *Waiter, key string, n int64) (bool, error) {
	arrived, err := m.add(key, 1)
	if err != nil {
		return false, err
	}
	if arrived >= n {
		m.wakeKey(key)
		return true, nil
	}
	if p := m.parked[key]; p != nil {
		m.wakeAll(&p.keys)
		m.wakeAll(&p.changes)
	}
	p := m.parkedAt(key)
	m.park(w, p, &p.barriers)
	return false, nil
}

// OnChange parks the waiter until the value of the key is set or changed.
func (m *Map) OnChange(w *Waiter, key string) {
	p := m.parkedAt(key)
	m.park(w, p, &p.changes)
}

// OnPush parks the waiter until something is pushed to the queue, or the key of
// that name is set.
func (m *Map) OnPush(w *Waiter, key string) {
	p := m.parkedAt(key)
	m.park(w, p, &p.keys)
}

func (m *Map) park(w *Waiter, p *parked, l *list.List) {
	w.links, w.pending, w.queue = make([]link, 1), 1, nil
	w.links[0] = link{waiter: w, at: p}
	w.links[0].appendTo(l)
}

// Parked reports whether the waiter is waiting.
func (w *Waiter) Parked() bool { return w.pending > 0 }

// Cancel ends a wait, if it still goes on. If a push to a queue had ended it
// and the value is still there, the next in line is woken in its place.
func (m *Map) Cancel(w *Waiter) {
	m.release(w)
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

func (m *Map) release(w *Waiter) {
	for i := range w.links {
		m.unlink(&w.links[i])
	}
	w.links, w.pending = nil, 0
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

func (m *Map) wakeKey(key string) {
	if p := m.parked[key]; p != nil {
		m.wakeAll(&p.keys)
		m.wakeAll(&p.changes)
		m.wakeAll(&p.barriers)
	}
}

func (m *Map) wakeAll(l *list.List) {
	for k := first(l); k != nil; k = first(l) {
		m.fulfil(k)
	}
}

// wakeOne counts a push to a queue for the waiters in line, oldest first, until
// one of them has nothing else to wait for.
func (m *Map) wakeOne(key string) {
	p := m.parked[key]
	if p == nil {
		return
	}
	for oldest := first(&p.keys); oldest != nil; oldest = first(&p.keys) {
		w := oldest.waiter
		fired := false
		for i := range w.links { // a key listed twice has two links
			if k := &w.links[i]; k.list == &p.keys {
				fired = m.fulfil(k)
				if fired {
					break
				}
			}
		}
		if fired {
			w.queue = &p.key
			return
		}
	}
}
