package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/kmsg"
)

// oomCounts are the kernel's counters of processes that it killed for lack of
// memory, by file.
type oomCounts map[string]int64

// oomBase is what a group remembers of the time before its first worker.
type oomBase struct {
	oomBefore oomCounts
	began     int64 // microseconds since boot
}

// oomCounts reads the counters of every cgroup whose limit can hit a worker.
func (y *system) oomCounts() oomCounts {
	counts := make(oomCounts, len(y.oomFiles))
	for _, file := range y.oomFiles {
		if n, err := cgroup.OOMKills(file); err == nil {
			counts[file] = n
		}
	}
	return counts
}

// oomEvidence returns what proves that the kernel killed w for lack of memory, or a process in the
// same cgroup, or "". The kernel log, where it can be read, tells which process. A kill counts for one
// worker.
func (g *Group) oomEvidence(w *worker) string {
	killed := w.exit.Code == -int(unix.SIGKILL)
	counted, file := "", ""
	for name, now := range g.sup.system.oomCounts() {
		if before, ok := g.oomBefore[name]; ok && now > before {
			file, counted = name, fmt.Sprintf("cgroup %s: oom_kill %d -> %d", name, before, now)
		}
	}
	if dir := w.system.cgroup; dir != nil && counted == "" {
		if n, err := cgroup.OOMKills(dir.Path() + "/memory.events"); err == nil && n > 0 {
			counted = fmt.Sprintf("cgroup %s: oom_kill 0 -> %d", dir.Path(), n)
		}
	}
	if !killed && w.exit.Code != 128+int(unix.SIGKILL) && counted == "" {
		return ""
	}
	text, others := kernelLogKill(w.pid, g.began)
	if text == "" && others && inFirstPIDNamespace() && killed {
		return "" // the log names who was killed, and it was not this process
	}
	g.oomBefore[file]++ // "" is none of them
	if text != "" {
		return "kernel log: " + text
	}
	return counted
}

// inFirstPIDNamespace reports whether this process sees the numbers that the kernel
// log has. The number is that of the kernel's PROC_PID_INIT_INO.
func inFirstPIDNamespace() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == "pid:[4026531836]"
}

// kernelLogKill looks for the kernel's message that it killed pid, written after
// since (microseconds since boot), and whether it killed others.
func kernelLogKill(pid int, since int64) (text string, others bool) {
	kmsg.Read(func(record string) {
		killed, line := parseKill(record, since)
		if killed == pid {
			text = line
		} else if killed > 0 {
			others = true
		}
	})
	return text, others
}

// parseKill reads a record of /dev/kmsg, "priority,number,microseconds,…;text".
// If it says that a process was killed for lack of memory after since, it returns
// the process's number and the text. Constraints of the texts: mm/oom_kill.c.
func parseKill(record string, since int64) (pid int, text string) {
	text, ok := kmsg.After(record, since) // another process may have had this pid before
	if !ok {
		return 0, ""
	}
	_, rest, ok := strings.Cut(text, "illed process ")
	if !ok {
		return 0, ""
	}
	number, _, ok := strings.Cut(rest, " (")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil || pid <= 0 {
		return 0, ""
	}
	return pid, text
}
