package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
)

const (
	rlimitNPROC   = unix.RLIMIT_NPROC
	rlimitMEMLOCK = unix.RLIMIT_MEMLOCK
)

func disk(path string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Disk{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(s.Frsize) // not Bsize, which FUSE and network file systems set larger
	return Disk{Size: s.Blocks * block, Free: s.Bavail * block, Files: s.Files, Left: s.Ffree}, nil
}

func tryCgroup() error {
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	if own.Unified == "" {
		return errors.New("no hierarchy of version 2 is mounted")
	}
	dir, err := cgroup.Make(own.Unified, fmt.Sprintf("muster-doctor-%d-%x", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		return err
	}
	return dir.Remove()
}

// kernelLog reads the kernel's ring buffer without emptying it.
func kernelLog() ([]byte, error) {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, min(max(size, 1<<12), 16<<20))
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
