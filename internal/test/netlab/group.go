//go:build linux

package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
)

// groupPrefix begins the name of every lab's cgroup.
const groupPrefix = "netlab-"

// newGroup makes a cgroup for the cgroups of hosts, if it can: what programs in a
// host make there goes with the host. Those of tests that were killed, which only a
// later one can remove, are removed.
func newGroup() *cgroup.Dir {
	own, err := cgroup.Own()
	if err != nil || own.Unified == "" {
		return nil
	}
	cgroup.RemoveStale(own.Unified, groupPrefix, nil)
	group, _ := cgroup.MakeLocked(own.Unified, groupPrefix)
	return group
}

// removeGroup removes a cgroup and all below it once their last process has ended,
// which it has for this process a moment before it has for the cgroup.
func removeGroup(group *cgroup.Dir) error {
	if err := awaitEmpty(group.Path()+"/cgroup.events", patience); err != nil {
		return err
	}
	return group.Remove()
}

// awaitEmpty waits until a cgroup's file of events says that no process is left.
func awaitEmpty(path string, limit time.Duration) error {
	events, err := os.Open(path)
	if err != nil {
		return err
	}
	defer events.Close()
	for deadline := time.Now().Add(limit); ; {
		text := make([]byte, 4096)
		n, err := events.ReadAt(text, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if bytes.Contains(text[:n], []byte("populated 0")) {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("%s says that processes are left", path)
		}
		// The kernel tells of a change since the last read.
		changed := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(changed, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
