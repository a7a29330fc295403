package process

import (
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
)

const rlimitNPROC = unix.RLIMIT_NPROC

func threads() (int, error)          { return procfs.Threads() }
func threadsOf(uid int) (int, error) { return procfs.ThreadsOf(uid) }
