package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
)

// blockSize is not Bsize, which FUSE and network file systems set larger.
func blockSize(s *unix.Statfs_t) uint64 { return uint64(s.Frsize) }

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
