//go:build unix && !linux

package store

import "time"

// newWatcher returns a poller: these systems have no inotify.
func newWatcher(string) (watcher, error) { return newPoller(20 * time.Millisecond), nil }
