//go:build !linux

package procfs

import "errors"

// Uses is only known on Linux.
func Uses([]int) (map[int]Use, error) { return nil, errors.ErrUnsupported }

// Read is only known on Linux.
func Read(int) (Stat, error) { return Stat{}, errors.ErrUnsupported }

// Environ is only known on Linux.
func Environ(int) ([]byte, error) { return nil, errors.ErrUnsupported }
