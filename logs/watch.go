package logs

import "sync/atomic"

// A watch is one follower's wait for a change of its file.
type watch struct {
	fired atomic.Bool   // the file has changed since the watch was armed
	wake  chan struct{} // sent to, if there is room, after fired was set
}

func (w *watch) fire() {
	w.fired.Store(true)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
