//go:build !linux

package procfs

import "errors"

// All is only known on Linux.
func All() ([]Stat, error) { return nil, errors.ErrUnsupported }

// Read is only known on Linux.
func Read(int) (Stat, error) { return Stat{}, errors.ErrUnsupported }

// Environ is only known on Linux.
func Environ(int) ([]byte, error) { return nil, errors.ErrUnsupported }
