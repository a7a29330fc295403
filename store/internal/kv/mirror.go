package kv

import (
	"bytes"
	"strings"
)

// A Mirror is where the value of a mirrored key really is. Its methods are
// called with the map locked and must not use the map.
type Mirror interface {
	// Render is called before the value is read, compared or changed. Unless
	// changed is false, which says that the value is what the last Render
	// returned or the last Adopt was given, the value becomes the key's.
	// Nobody may change its bytes afterwards.
	Render() (value []byte, changed bool)
	// Adopt is called after somebody has written the value, with nil if the key
	// was deleted and an empty slice if it was set to nothing. Nobody changes its bytes afterwards.
	Adopt(value []byte)
}

// mirrored is a mirror and the key of its entry.
type mirrored struct {
	Mirror
	key string
}

// Mirror makes m the place where the value of a key is, until Unmirror. It
// returns the value that the key had, the caller's; nil if there was no key. From
// then on the key exists. Who waits for it is woken.
func (m *Map) Mirror(key string, mirror Mirror) (existing []byte) {
	e := m.m[key]
	if e == nil {
		e = &entry{}
		m.m[strings.Clone(key)] = e
	} else {
		value, _ := m.Get(key)
		existing = append([]byte{}, value...)
	}
	if m.mirrors == nil {
		m.mirrors = map[*entry]mirrored{}
	}
	m.mirrors[e] = mirrored{mirror, strings.Clone(key)}
	e.mirrored, e.shared = true, true
	m.wakeKey(key)
	return existing
}

// Unmirror ends what Mirror began and removes the key, whose value was elsewhere.
// It reports whether the key was a mirror's.
func (m *Map) Unmirror(key string) bool {
	e := m.m[key]
	if e == nil || !e.mirrored {
		return false
	}
	delete(m.mirrors, e)
	delete(m.m, key)
	return true
}

// render brings a mirrored entry up to date. Inlined it would keep Get from being so.
//
//go:noinline
func (m *Map) render(e *entry) {
	if value, changed := m.mirrors[e].Render(); changed {
		e.set(value)
	}
}

// adopt tells the mirror what has been written to its entry.
//
//go:noinline
func (m *Map) adopt(e *entry) {
	if e.value == nil {
		e.value = []byte{} // nil says that the key was deleted
	}
	e.set(e.value)
	m.mirrors[e].Adopt(e.value)
}

// set makes the entry's value one that others may hold, and append to.
func (e *entry) set(value []byte) { e.value, e.shared = value[:len(value):len(value)], true }

// compareAndSet is CompareAndSet at a mirrored key.
func (m *Map) compareAndSet(e *entry, expected []byte, desired Value) []byte {
	m.render(e)
	if !bytes.Equal(e.value, expected) {
		return e.value
	}
	changed := !bytes.Equal(e.value, desired.Bytes)
	e.set(desired.own())
	m.adopt(e)
	if changed {
		m.wakeKey(m.mirrors[e].key)
	}
	return desired.Bytes
}

// mirroredOnly returns the mirrored entries.
func (m *Map) mirroredOnly() map[string]*entry {
	left := map[string]*entry{}
	for e, mirror := range m.mirrors {
		left[mirror.key] = e
	}
	return left
}
