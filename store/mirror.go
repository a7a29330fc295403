package store

// A Mirror keeps the value of one key of a store somewhere else, in a form that
// is better than bytes for whoever owns it. Those who use the store notice
// nothing, but that the key always exists.
//
// Its methods are called with the store locked. They must not block and must not
// use the store, and whoever holds a lock that they take must not either.
type Mirror interface {
	// Render is called before the value is read, compared or changed. Unless
	// changed is false, which says that the value is what the last Render
	// returned or the last Adopt was given, the value becomes the key's.
	// Nobody may change its bytes afterwards.
	Render() (value []byte, changed bool)
	// Adopt is called after somebody has written the value: set it, appended to
	// it, added to it, or won a comparison, even if it is what it was. Value is nil
	// if the key was deleted, or empty if it was set to nothing. Nobody
	// changes its bytes afterwards.
	Adopt(value []byte)
}

// Mirror makes m the place where the value of a key is, until Unmirror, and
// returns the value that the key had, or nil if there was none. Who
// waits for the key is woken, by this and by what others write; changes that m
// makes wake nobody. Reset does not touch the key.
func (s *Memory) Mirror(key string, m Mirror) (existing []byte) {
	s.m.Lock()
	defer s.m.Unlock()
	return s.m.Mirror(key, m)
}

// Unmirror ends what Mirror began and removes the key. Where there is no
// mirror it does nothing.
func (s *Memory) Unmirror(key string) {
	s.m.Lock()
	defer s.m.Unlock()
	s.m.Unmirror(key)
}
