//go:build !linux

package doctor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const (
	rlimitNPROC   = 7 // Darwin's
	rlimitMEMLOCK = 6
)

func disk(path string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(s.Bsize)
	return Disk{Size: s.Blocks * block, Free: s.Bavail * block, Files: s.Files, Left: s.Ffree}, nil
}

func tryCgroup() error { return errors.New("this system has none") }

func kernelLog() ([]byte, error) { return nil, errors.ErrUnsupported }
