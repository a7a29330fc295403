package autopsy

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

func procPath(pid int, parts ...string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + strings.Join(parts, "/")
}

// identify reads what may be read of any process without waiting for its memory.
func identify(pid int) identity {
	id := identity{state: stateGone, uid: -1}
	stat, err := procfs.Read(pid)
	if err != nil {
		return id
	}
	id.state, id.start = stateWord(stat.State), stat.Start
	if text, err := procfs.ReadFile(procPath(pid, "status")); err == nil {
		// Real, effective, saved: a set-user-ID program is not all its user's.
		if fields := strings.Fields(procfs.Field(text, "Uid:")); len(fields) > 2 && fields[0] == fields[1] &&
			fields[1] == fields[2] {
			id.uid, _ = strconv.Atoi(fields[0])
		}
	}
	id.exe, _ = os.Readlink(procPath(pid, "exe"))
	id.exe = strings.TrimSuffix(id.exe, " (deleted)")
	id.cwd, _ = os.Readlink(procPath(pid, "cwd"))
	return id
}

func commandLine(pid int) []string {
	text, _ := procfs.ReadFile(procPath(pid, "cmdline"))
	return splitNUL(text)
}

func environment(pid int) ([]string, error) {
	text, err := procfs.Environ(pid)
	return splitNUL(text), err
}

// splitNUL splits a text whose parts each end with a NUL byte.
func splitNUL(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

// hasLibpython reports whether a program that is not named python runs Python.
func hasLibpython(pid int) bool {
	text, err := procfs.ReadFile(procPath(pid, "maps"))
	return err == nil && bytes.Contains(text, []byte("/libpython"))
}

// descendants returns the processes that a process has started, and theirs, the
// nearest first, at most limit.
func descendants(pid, limit int) []int {
	var found []int
	for next := []int{pid}; len(next) > 0 && len(found) < limit; next = next[1:] {
		for _, tid := range tasks(next[0]) {
			text, err := procfs.ReadFile(procPath(next[0], "task", strconv.Itoa(tid), "children"))
			if err != nil {
				continue
			}
			for _, child := range procfs.ParseChildren(text) {
				if !slices.Contains(found, child) {
					found = append(found, child)
					next = append(next, child)
				}
			}
		}
	}
	return found[:min(len(found), limit)]
}

// tasks returns the numbers of a process' threads, in order, the main thread's first.
func tasks(pid int) []int {
	entries, _ := os.ReadDir(procPath(pid, "task"))
	var tids []int
	for _, entry := range entries {
		if tid, err := strconv.Atoi(entry.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.SortFunc(tids, func(a, b int) int { return cmp.Or(before(a == pid, b == pid), a-b) })
	return tids
}

// native looks at a process' threads.
func native(ctx context.Context, pid int) Native {
	n, ok := within(ctx, func() (n Native) {
		tids := tasks(pid)
		n.ThreadCount = len(tids)
		for _, tid := range tids[:min(len(tids), maxThreads)] {
			n.Threads = append(n.Threads, readThread(procPath(pid, "task", strconv.Itoa(tid)), tid))
		}
		return n
	})
	if !ok {
		n.Problems = []string{"/proc did not answer in time"}
	}
	return n
}

func readThread(dir string, tid int) NativeThread {
	read := func(name string) []byte {
		text, _ := procfs.ReadFile(dir + "/" + name) // gone, or not ours to read
		return text
	}
	t := NativeThread{TID: tid, State: stateGone, Name: strings.TrimSpace(string(read("comm")))}
	if stat, err := procfs.ParseStat(read("stat")); err == nil {
		t.State = stateWord(stat.State)
	}
	if channel := string(read("wchan")); channel != "0" {
		t.WaitChannel = strings.TrimSpace(channel)
	}
	t.Syscall = parseSyscall(string(read("syscall")))
	return t
}

// parseSyscall reads the text of /proc/<pid>/syscall: a number and arguments,
// -1 where a thread sleeps outside a call, or "running".
func parseSyscall(text string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	number, err := strconv.Atoi(first)
	if err != nil || number < 0 {
		return ""
	}
	name := calls[number]
	if name == "" && runtime.GOARCH == "amd64" {
		name = amd64Calls[number]
	}
	if name == "" {
		return "syscall " + first
	}
	name, onFile := strings.CutSuffix(name, " fd")
	if arg, _, more := strings.Cut(rest, " "); onFile && more {
		if fd, err := strconv.ParseUint(arg, 0, 32); err == nil {
			name += " fd " + strconv.FormatUint(fd, 10)
		}
	}
	return name
}

// calls names the calls in which threads are found waiting, with "fd" where the first
// argument is a file descriptor.
var calls = map[int]string{
	unix.SYS_READ: "read fd", unix.SYS_WRITE: "write fd", unix.SYS_READV: "readv fd", unix.SYS_WRITEV: "writev fd",
	unix.SYS_PREAD64: "pread64 fd", unix.SYS_PWRITE64: "pwrite64 fd", unix.SYS_RECVFROM: "recvfrom fd",
	unix.SYS_RECVMSG: "recvmsg fd", unix.SYS_SENDTO: "sendto fd", unix.SYS_SENDMSG: "sendmsg fd",
	unix.SYS_CONNECT: "connect fd", unix.SYS_ACCEPT: "accept fd", unix.SYS_ACCEPT4: "accept4 fd",
	unix.SYS_EPOLL_PWAIT: "epoll_pwait fd", unix.SYS_IOCTL: "ioctl fd", unix.SYS_FSYNC: "fsync fd",
	unix.SYS_FDATASYNC: "fdatasync fd", unix.SYS_FLOCK: "flock fd",
	unix.SYS_FUTEX: "futex", unix.SYS_PPOLL: "ppoll", unix.SYS_PSELECT6: "pselect6", unix.SYS_NANOSLEEP: "nanosleep",
	unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep", unix.SYS_WAIT4: "wait4", unix.SYS_WAITID: "waitid",
	unix.SYS_OPENAT: "openat", unix.SYS_CLOSE: "close", unix.SYS_MMAP: "mmap",
	unix.SYS_MUNMAP: "munmap", unix.SYS_RT_SIGTIMEDWAIT: "rt_sigtimedwait",
	unix.SYS_RT_SIGSUSPEND: "rt_sigsuspend", unix.SYS_RESTART_SYSCALL: "restart_syscall",
	unix.SYS_SCHED_YIELD: "sched_yield",
}

// amd64Calls are those that newer architectures do not have.
var amd64Calls = map[int]string{7: "poll", 23: "select", 34: "pause", 232: "epoll_wait fd"}

// resolve makes a path of the worker's one of ours: it may be relative to the
// worker's directory, or belong to a container's file system.
func resolve(s *subject, path string) string {
	if !filepath.IsAbs(path) {
		return procPath(s.PID, "cwd", path)
	}
	if elsewhere(s.PID) {
		return procPath(s.PID, "root") + path
	}
	return path
}

// elsewhere reports whether a process has another file system than we, as in a container.
func elsewhere(pid int) bool {
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	theirs, err2 := os.Readlink(procPath(pid, "ns", "mnt"))
	return err1 == nil && err2 == nil && ours != theirs
}
