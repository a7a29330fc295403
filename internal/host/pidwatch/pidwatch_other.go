//go:build !linux

package pidwatch

import "errors"

// A Set cannot be had on this system.
type Set struct{}

// New returns errors.ErrUnsupported.
func New() (*Set, error) { return nil, errors.ErrUnsupported }

// Add returns errors.ErrUnsupported.
func (*Set) Add(int, uint64) error { return errors.ErrUnsupported }

// Run returns at once.
func (*Set) Run(func(key uint64) bool) {}

// Close does nothing.
func (*Set) Close() {}
