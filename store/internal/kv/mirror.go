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

// Mirror makes m the place where the value of a key is, until Unmirror. It
// returns the value that the key had, valid for ever; nil if there was no key. From
// then on the key exists. Who waits for it is woken.
func (m *Map) Mirror(key string, mirror Mirror) (existing []byte) {
	e := m.m[key]
	if e == nil {
		e = &entry{}
		m.m[strings.Clone(key)] = e
	} else if existing, _ = m.Share(key); existing == nil {
		existing = []byte{}
	}
	if m.mirrors == nil {
		m.mirrors = map[string]Mirror{}
	}
	m.mirrors[strings.Clone(key)] = mirror
	e.mirrored, e.shared = true, true
	m.wakeKey(key)
	return existing
}

// Unmirror ends what Mirror began and removes the key, whose value was elsewhere.
// It reports whether the key was a mirror's.
func (m *Map) Unmirror(key string) bool {
	if m.mirrors[key] == nil {
		return false
	}
	delete(m.mirrors, key)
	delete(m.m, key)
	return true
}

// render brings a mirrored entry up to date.
func (m *Map) render(key string, e *entry) {
	if value, changed := m.mirrors[key].Render(); changed {
		e.set(value)
	}
}

// adopt tells the mirror what has been written to its entry.
func (m *Map) adopt(key string, e *entry) {
	if e.value == nil {
		e.value = []byte{} // nil says that the key was deleted
	}
	e.set(e.value)
	m.mirrors[key].Adopt(e.value)
}

// set makes the entry's value one that others may hold, and append to.
func (e *entry) set(value []byte) { e.value, e.shared = value[:len(value):len(value)], true }

// compareAndSet is CompareAndSet at a mirrored key.
func (m *Map) compareAndSet(key string, e *entry, expected []byte, desired Value) []byte {
	m.render(key, e)
	if !bytes.Equal(e.value, expected) {
		return e.value
	}
	changed := !bytes.Equal(e.value, desired.Bytes)
	e.set(desired.own())
	m.adopt(key, e)
	if changed {
		m.wakeKey(key)
	}
	return desired.Bytes
}

// mirrored returns the mirrored entries.
func (m *Map) mirrored() map[string]*entry {
	left := map[string]*entry{}
	for key := range m.mirrors {
		left[key] = m.m[key]
	}
	return left
}
