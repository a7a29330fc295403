package quorum

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/tempdir"
)

// dir is where the data lies: given, one per run, or temporary.
func (m *member) dir() (dir string, cleanUp func(), err error) {
	if m.cfg.DataDir != "" {
		dir = filepath.Join(m.cfg.DataDir, url.PathEscape(m.cfg.RunID)+"."+url.PathEscape(m.me.client))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", nil, fmt.Errorf("data directory: %w", err)
		}
		return dir, func() {}, nil
	}
	top, unlock, err := lockedTemp(os.TempDir())
	if err != nil {
		return "", nil, fmt.Errorf("temporary data directory: %w", err)
	}
	return filepath.Join(top, "data"), func() {
		_ = os.RemoveAll(top)
		unlock()
	}, nil
}

// leastRoom is what etcd takes from the disk at once: two segments of its log, and its
// database. It panics where it cannot have that.
const leastRoom = 16 << 20

// checkRoom says if there is too little room for the data of a member that has none yet.
func checkRoom(dir string) error {
	var fs syscall.Statfs_t
	err := syscall.Statfs(tempdir.Existing(dir), &fs)
	if free := uint64(fs.Bavail) * uint64(fs.Bsize); err == nil && free < leastRoom {
		return fmt.Errorf(
			"data directory %s: %d KiB are free, and a member of the quorum needs %d MiB: make room, set TMPDIR, or give data_dir in Spec.Settings",
			dir, free>>10, leastRoom>>20)
	}
	return nil // or it cannot be known
}

const (
	tempPattern = "muster-quorum-*"
	lockName    = "lock" // held by the process that the directory belongs to
)

// lockedTemp makes a directory that belongs to this process until unlock.
func lockedTemp(parent string) (dir string, unlock func(), err error) {
	for {
		if dir, err = os.MkdirTemp(parent, tempPattern); err != nil {
			return "", nil, err
		}
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
		if os.IsNotExist(err) {
			continue // as below
		}
		if err != nil {
			return "", nil, err
		}
		// Where a file system has no locks nobody sweeps either.
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if _, err := os.Lstat(f.Name()); err == nil {
			return dir, func() { f.Close() }, nil
		}
		f.Close() // another process has swept it before it was locked
	}
}

// sweep removes the directories of members that were killed and could not: those
// whose lock nobody holds.
func sweep(parent string, logger *slog.Logger) {
	dirs, err := filepath.Glob(filepath.Join(parent, tempPattern))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if err := sweepOne(dir); err != nil {
			logger.Warn("cannot remove the files of a member that was killed", "error", err)
		}
	}
}

// sweepOne removes a directory if it is this user's and its process is gone. One
// without a lock may just be in the making.
func sweepOne(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Getuid() {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	switch {
	case os.IsNotExist(err) && time.Since(info.ModTime()) > time.Minute:
		_ = os.Remove(dir) // if it is empty; else it is somebody's data_dir
		return nil
	case err != nil:
		return nil
	}
	defer f.Close() // once it is removed: who waits for the lock sees that then
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil
	}
	return os.RemoveAll(dir)
}
