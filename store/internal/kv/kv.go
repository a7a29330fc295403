// Package kv is the data of a store and the waiters on it: a map from keys to
// values, queues beside it, and for each key those who wait for it. A Memory makes a
// store of it for goroutines; the TCPStore server serves its clients from the Map itself.
//
// A Map has one lock, which the caller takes: Lock, any number of methods,
// Unlock. A waiter is told under the lock, so that the order in which waiters
// learn of things is the order in which they happened; what a notification
// needs to do outside the lock happens in Unlock.
package kv

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ErrNotNumber is returned where a stored value should be a decimal number of
// 64 bits and is not.
var ErrNotNumber = errors.New("stored value is not a number of 64 bits")

// A Value is a value to be stored. Unless Keep is set its bytes are copied;
// otherwise the map keeps the slice itself, which the caller then leaves alone.
type Value struct {
	Bytes []byte
	Keep  bool
}

func (v Value) own() []byte {
	if v.Keep {
		return v.Bytes
	}
	return bytes.Clone(v.Bytes)
}

// A Map holds keys, queues and waiters. Make one with New.
type Map struct {
	mu     sync.Mutex // guards everything below
	m      map[string]*entry
	queues map[string]*queue
	parked map[string]*parked
	told   []Notifier // to be delivered by Unlock
}

// An entry is a pointer so that changing a value needs no new key.
//
// The bytes of a value may be overwritten in place, unless shared says that somebody
// holds on to them; what lies behind their end may be appended to all the same. With a
// mirror the value is the last that is known here, always shared, and without room
// behind its end.
type entry struct {
	value  []byte
	shared bool
	mirror *mirror // where the value really is; nil: here
}

// A mirror is told before the value of its key is read, and after it was written.
type mirror struct {
	render func() (value []byte, changed bool)
	adopt  func(value []byte)
}

// New returns an empty map.
func New() *Map {
	return &Map{m: map[string]*entry{}, queues: map[string]*queue{}, parked: map[string]*parked{}}
}

// Lock locks the map. Every other method but Unlock wants it locked.
func (m *Map) Lock() { m.mu.Lock() }

// Unlock unlocks the map and delivers what waiters were told meanwhile. Deliver does system calls, and one that
// is slow must not hold up the other clients.
func (m *Map) Unlock() {
	if m.told == nil {
		m.mu.Unlock()
		return
	}
	told := m.told
	m.told = nil
	m.mu.Unlock()
	for _, n := range told {
		n.Deliver()
	}
}

// at returns the entry of a key, with its value up to date; nil: there is none.
func (m *Map) at(key string) *entry {
	e := m.m[key]
	if e != nil && e.mirror != nil {
		e.update()
	}
	return e
}

// update is not inlined, so that at is.
//
//go:noinline
func (e *entry) update() {
	if value, changed := e.mirror.render(); changed {
		e.fix(value)
	}
}

// written tells a mirror of the value that its entry has been given.
func (e *entry) written() {
	if e.mirror != nil {
		if e.value == nil {
			e.value = []byte{} // nil says that the key was deleted
		}
		e.fix(e.value)
		e.mirror.adopt(e.value)
	}
}

// fix makes the entry's value one that others may hold, and append to.
func (e *entry) fix(value []byte) { e.value, e.shared = value[:len(value):len(value)], true }

// Get returns a key's value, valid until Unlock.
func (m *Map) Get(key string) (value []byte, ok bool) {
	e := m.at(key)
	if e == nil {
		return nil, false
	}
	return e.value, true
}

// Share returns a key's value, valid for ever: nobody will change its bytes.
func (m *Map) Share(key string) (value []byte, ok bool) {
	e := m.at(key)
	if e == nil {
		return nil, false
	}
	e.shared = true
	return e.value, true
}

// Has reports whether the key exists or is that of a queue that is not empty.
func (m *Map) Has(key string) bool { return m.m[key] != nil || m.queues[key] != nil }

// Len returns the number of keys.
func (m *Map) Len() int { return len(m.m) }

// Keys returns all keys, in no particular order.
func (m *Map) Keys() []string {
	return slices.AppendSeq(make([]string, 0, len(m.m)), maps.Keys(m.m))
}

// Set sets a value and wakes the key's waiters.
func (m *Map) Set(key string, v Value) {
	m.put(key, m.m[key], v).written()
	m.wakeKey(key)
}

func (m *Map) put(key string, e *entry, v Value) *entry {
	switch {
	case e == nil:
		e = &entry{value: v.own()}
		m.m[strings.Clone(key)] = e
	case v.Keep:
		e.value, e.shared = v.Bytes, false
	case !e.shared && len(v.Bytes) <= cap(e.value) && cap(e.value) <= 2*len(v.Bytes)+64:
		e.value = append(e.value[:0], v.Bytes...)
	default:
		e.value, e.shared = bytes.Clone(v.Bytes), false
	}
	return e
}

// Append appends to a value, or creates it, and wakes the key's waiters.
func (m *Map) Append(key string, v Value) {
	if e := m.at(key); e == nil {
		m.put(key, nil, v)
	} else {
		// Readers of a shared value see its old length only, so growing it
		// in place is safe.
		e.value = append(e.value, v.Bytes...)
		e.written()
	}
	m.wakeKey(key)
}

// Add adds to the number stored at the key and wakes the key's waiters.
func (m *Map) Add(key string, delta int64) (int64, error) {
	sum, err := m.add(key, delta)
	if err == nil {
		m.wakeKey(key)
	}
	return sum, err
}

func (m *Map) add(key string, delta int64) (sum int64, err error) {
	e := m.at(key)
	if e == nil {
		e = &entry{}
		m.m[strings.Clone(key)] = e
	} else {
		old, ok := ParseInt(e.value)
		if !ok {
			return 0, ErrNotNumber
		}
		delta += old
	}
	if e.shared || cap(e.value) > 64 {
		e.value, e.shared = nil, false
	}
	e.value = strconv.AppendInt(e.value[:0], delta, 10)
	e.written()
	return delta, nil
}

// CompareAndSet sets the key to desired if its value is expected, or if there is
// none and expected is empty. It returns the value that decides, valid for
// ever: desired if it was set, else the key's value, else expected. It wakes the key's
// waiters if the value was created or changed.
func (m *Map) CompareAndSet(key string, expected []byte, desired Value) []byte {
	e := m.at(key)
	switch {
	case e == nil && len(expected) > 0:
		return expected
	case e != nil && !bytes.Equal(e.value, expected):
		e.shared = true
		return e.value
	}
	changed := e == nil || !bytes.Equal(e.value, desired.Bytes)
	if changed || e.mirror != nil {
		e = m.put(key, e, desired)
		e.shared = desired.Keep
		e.written()
	}
	if changed {
		m.wakeKey(key)
	}
	return desired.Bytes
}

// Delete removes a key and reports whether it was there. It wakes nobody. A
// mirrored key stays, and its mirror learns of it.
func (m *Map) Delete(key string) bool {
	e := m.m[key]
	if e == nil {
		return false
	}
	if e.mirror != nil {
		e.fix(nil)
		e.mirror.adopt(nil)
		return true
	}
	delete(m.m, key)
	return true
}

// A queue is first in, first out. An empty one is not kept.
type queue struct {
	items [][]byte
	head  int // items[:head] are gone
}

// Push appends to a queue and wakes one waiter of the key.
func (m *Map) Push(key string, v Value) {
	q := m.queues[key]
	if q == nil {
		q = &queue{}
		m.queues[strings.Clone(key)] = q
	}
	q.items = append(q.items, v.own())
	m.wakeOne(key)
}

// Pop removes and returns the first value of a queue and says how many there
// were before; 0 means there was none.
func (m *Map) Pop(key string) (value []byte, before int) {
	q := m.queues[key]
	if q == nil {
		return nil, 0
	}
	before = len(q.items) - q.head
	value, q.items[q.head] = q.items[q.head], nil
	q.head++
	switch {
	case before == 1:
		delete(m.queues, key)
	case q.head >= 64 && q.head > len(q.items)/2:
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return value, before
}

// QueueLen returns the number of values in a queue.
func (m *Map) QueueLen(key string) int {
	q := m.queues[key]
	if q == nil {
		return 0
	}
	return len(q.items) - q.head
}

// Clear removes all queues and all keys that are not mirrored. Who waits continues
// waiting.
func (m *Map) Clear() {
	left := map[string]*entry{}
	for key, e := range m.m {
		if e.mirror != nil {
			left[key] = e
		}
	}
	m.m, m.queues = left, map[string]*queue{}
}

// Mirror makes render and adopt the mirror of a key, until Unmirror: store.Mirror says
// what they do. It returns the value that the key had, the caller's; nil if there was no
// key. From then on the key exists. Who waits for it is woken.
func (m *Map) Mirror(key string, render func() ([]byte, bool), adopt func([]byte)) (existing []byte) {
	e := m.at(key)
	if e == nil {
		e = &entry{}
		m.m[strings.Clone(key)] = e
	} else {
		existing = append([]byte{}, e.value...)
	}
	e.mirror, e.shared = &mirror{render, adopt}, true
	m.wakeKey(key)
	return existing
}

// Unmirror ends what Mirror began and removes the key, whose value was elsewhere.
// It reports whether the key was a mirror's.
func (m *Map) Unmirror(key string) bool {
	e := m.m[key]
	if e == nil || e.mirror == nil {
		return false
	}
	delete(m.m, key)
	return true
}
