package process

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
	"github.com/muster-run/muster/internal/procfs"
)

// oomCounts are the kernel's counters of processes that it killed for lack of
// memory, by file.
type oomCounts map[string]int64

// readOOM reads the counters of every cgroup whose limit can have hit a worker:
// its own (version 2), and the memory cgroup that it shares with this process.
func readOOM(dir *cgroup.Dir) oomCounts {
	counts := oomCounts{}
	if dir != nil {
		counts.read(dir.Path + "/memory.events")
	}
	for _, file := range oomFiles() {
		counts.read(file)
	}
	return counts
}

func (c oomCounts) read(file string) {
	text, err := procfs.ReadFile(file)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			if n, err := strconv.ParseInt(count, 10, 64); err == nil {
				c[file] = n
			}
		}
	}
}

// oomEvidence returns what proves that the kernel killed w for lack of memory,
// or "".
func oomEvidence(w *worker) string {
	if text := kernelLogKill(w.pid, w.started); text != "" {
		return "kernel log: " + text
	}
	for file, n := range readOOM(w.cgroup) {
		if before, ok := w.oomBefore[file]; ok && n > before {
			return fmt.Sprintf("cgroup %s: oom_kill %d→%d", filepath.Base(file), before, n)
		}
	}
	return ""
}

// kernelLogKill looks for the kernel's message that it killed pid, written after
// since (time since boot).
func kernelLogKill(pid int, since int64) string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	needle := fmt.Sprintf("illed process %d (", pid)
	buf := make([]byte, 8192)
	found := ""
	for range 100_000 {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE || err == unix.EINTR {
			continue // the oldest messages were overwritten meanwhile
		}
		if err != nil || n <= 0 {
			break
		}
		head, text, ok := strings.Cut(string(buf[:n]), ";")
		if !ok || !strings.Contains(text, needle) {
			continue
		}
		fields := strings.SplitN(head, ",", 4)
		if len(fields) < 3 {
			continue
		}
		if at, err := strconv.ParseInt(fields[2], 10, 64); err != nil || at < since {
			continue // another process that had this pid before
		}
		found, _, _ = strings.Cut(text, "\n")
	}
	return found
}

// sinceBoot returns the microseconds since boot, as the kernel log counts them.
func sinceBoot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano() / 1000
}

// oomFiles are the files in which this process' own memory cgroup, of either
// version, counts.
var oomFiles = sync.OnceValue(func() []string {
	var files []string
	if own, err := cgroup.Own(); err == nil {
		files = append(files, own+"/memory.events")
	}
	if v1, err := cgroup.OwnV1("memory"); err == nil {
		files = append(files, v1+"/memory.oom_control")
	}
	return files
})
