//go:build !linux

package doctor

import (
	"errors"

	"golang.org/x/sys/unix"
)

func blockSize(s *unix.Statfs_t) uint64 { return uint64(s.Bsize) }

func tryCgroup() error { return errors.New("this system has none") }
