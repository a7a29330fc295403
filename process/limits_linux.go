package process

import "github.com/muster-run/muster/internal/procfs"

func threads() (int, error)          { return procfs.Threads() }
func threadsOf(uid int) (int, error) { return procfs.ThreadsOf(uid) }
