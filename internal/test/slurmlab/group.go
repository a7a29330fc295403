//go:build linux

package slurmlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freezer is where Linux mounts the hierarchy of control groups (version 1) by which
// Slurm's proctrack/cgroup tells the processes of a step.
const freezer = "/sys/fs/cgroup/freezer"

// groupPrefix begins the names of the groups that labs make there; the number of the
// process that made it follows.
const groupPrefix = "muster-slurmlab-"

// newGroup makes a group for the daemons of a lab; "" where that is not possible.
// Slurm would otherwise make its groups at the top, where those of other labs are.
func newGroup() string {
	var fs unix.Statfs_t
	if err := unix.Statfs(freezer, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
		return ""
	}
	// What test processes have left that were killed.
	found, _ := filepath.Glob(filepath.Join(freezer, groupPrefix+"*"))
	for _, dir := range found {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), groupPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			removeGroup(dir)
		}
	}
	dir, err := os.MkdirTemp(freezer, fmt.Sprintf("%s%d-", groupPrefix, os.Getpid()))
	if err != nil {
		return ""
	}
	return dir
}

// removeGroup removes a group and those below it, if no process is in them.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	return unix.Rmdir(dir)
}

// enterGroup is a script that runs its arguments with a group as the top of the
// hierarchy.
func enterGroup(dir string) string {
	return strings.NewReplacer("FREEZER", freezer, "GROUP", dir).Replace(
		`echo 0 >GROUP/cgroup.procs && exec unshare --cgroup --mount sh -c '` +
			`umount FREEZER && mount -t cgroup -o freezer none FREEZER && exec "$@"' sh "$@"`)
}
