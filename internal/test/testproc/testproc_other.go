//go:build !linux

package testproc

// CheckNothingLeft checks nothing on this system, which does not show other
// processes' environments.
func (l *Lab) CheckNothingLeft() {}

// Left returns nothing on this system.
func (l *Lab) Left() []int { return nil }

// Processes returns nothing on this system.
func (Tag) Processes() map[int]string { return nil }

func vfork() {}

func look(string) string { return "" }

func seize(int) {}

// RefuseMain does nothing on this system, which has no such filters.
func RefuseMain() {}
