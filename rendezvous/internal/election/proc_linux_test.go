package election_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childrenOf returns the PIDs of a process's children.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		t.Fatalf("process %d has no children", pid)
	}
	return out
}

// awaitEnd waits for the end of a process that is nobody's child here.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
	}
	if err != nil || n != 1 {
		t.Errorf("process %d outlives its agent: %v", pid, err)
	}
}

// freeze stops a child, as a host that is stuck would, and returns when its last thread
// has stopped.
func freeze(t *testing.T, pid int) {
	t.Helper()
	err := unix.Kill(pid, unix.SIGSTOP)
	for again := err == nil; again; again = err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kill ends a process in a way that leaves it no time.
func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 0 { // would be this process's group
		t.Fatalf("no process %d to kill", pid)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
