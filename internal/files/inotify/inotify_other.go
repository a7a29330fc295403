//go:build !linux

package inotify

import "errors"

// A Watcher cannot be had on this system.
type Watcher struct{}

// New returns errors.ErrUnsupported.
func New() (*Watcher, error) { return nil, errors.ErrUnsupported }

// Add returns errors.ErrUnsupported.
func (*Watcher) Add(string, Mask) (int32, error) { return 0, errors.ErrUnsupported }

// Run returns at once.
func (*Watcher) Run(func(Event)) {}

// Close does nothing.
func (*Watcher) Close() {}

// Remote returns true: what a directory is on is not known here.
func Remote(string) bool { return true }
