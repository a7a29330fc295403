package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrForeign is returned where /proc is not mounted, or shows another pid namespace:
// what has a process's number there is something else.
var ErrForeign = fmt.Errorf("no /proc of this pid namespace: %w", errors.ErrUnsupported)

// own reports whether /proc is this process's.
var own = sync.OnceValue(func() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
})

// Read returns what /proc/<pid>/stat says.
func Read(pid int) (Stat, error) {
	if !own() {
		return Stat{}, ErrForeign
	}
	text, err := ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	s, err := ParseStat(text)
	if err != nil {
		return Stat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return s, nil
}

// All returns every process that this one can see.
func All() ([]Stat, error) {
	if !own() {
		return nil, ErrForeign
	}
	pids, err := PIDs()
	list := make([]Stat, 0, len(pids))
	for _, pid := range pids {
		if s, err := Read(pid); err == nil {
			list = append(list, s)
		}
	}
	return list, err
}

// Orphans returns the children of this process' main thread. The kernel gives
// orphaned descendants of a child subreaper to that thread, so they are among
// them, with those that the thread started itself.
func Orphans() ([]int, error) {
	if !own() {
		return nil, ErrForeign
	}
	pid := os.Getpid()
	text, err := ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err == nil {
		return ParseChildren(text), nil
	}
	// A kernel without CONFIG_PROC_CHILDREN.
	all, err := All()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, s := range all {
		if s.Parent == pid {
			pids = append(pids, s.PID)
		}
	}
	return pids, nil
}

// Executing reports whether a process lies between two programs: it has the memory of the next one,
// and no environment yet. That of a process without any is empty, but has a place.
func Executing(pid int) bool {
	text, err := ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil || !own() {
		return false
	}
	const size, end = 23 - 3, 51 - 3 // vsize, env_end, of the fields after the name
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= end || string(fields[end]) != "0" || bytes.ContainsAny(fields[0], "ZX") {
		return false
	}
	if string(fields[size]) == "0" {
		return false // it has no memory any more: it is about to end
	}
	env, err := Environ(pid)
	return err == nil && len(env) == 0 // else it may not be looked at
}

// Environ returns the environment that a process was started with, entries
// separated by NUL bytes. Only its user and root may read it. It is empty for a
// moment while a process executes a program. A process whose first thread has ended tells it by
// another, unless one of its threads is stuck in the kernel: the answer could take as long.
func Environ(pid int) ([]byte, error) {
	if !own() {
		return nil, ErrForeign
	}
	env, err := ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	// Without memory the first thread tells nothing (ESRCH), and its files are root's (EACCES).
	if len(env) > 0 || err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EACCES) {
		return env, err
	}
	for range 8 { // the other thread may end, too
		first, err := Read(pid)
		if err != nil {
			break
		}
		thread := first.Living()
		if thread.PID == pid || thread.State == 'D' {
			break
		}
		if env, err := ReadFile("/proc/" + strconv.Itoa(thread.PID) + "/environ"); err == nil && len(env) > 0 {
			return env, nil
		}
	}
	return nil, err
}

// Living returns the process itself, or, where its first thread has ended before the others,
// one of them, by its own number: one that is stuck in the kernel if there is such a thread.
func (s Stat) Living() Stat {
	if s.State != 'Z' || !s.Alive() {
		return s
	}
	found := s
	threads, _ := os.ReadDir("/proc/" + strconv.Itoa(s.PID) + "/task")
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if t, err := Read(id); err == nil && t.State == 'D' {
			return t
		} else if err == nil && t.State != 'Z' && t.State != 'X' {
			found = t
		}
	}
	return found
}

// WaitChannel says where in the kernel a process waits: its state, the function,
// and the innermost part of the stack where that may be read.
func WaitChannel(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	where := "state unknown"
	if s, err := Read(pid); err == nil {
		where = "state " + string(s.State)
	}
	if text, err := ReadFile(dir + "/wchan"); err == nil && len(text) > 0 && string(text) != "0" {
		where += ", wait channel " + string(text)
	}
	if text, err := ReadFile(dir + "/stack"); err == nil {
		var frames []string
		for line := range strings.Lines(string(text)) {
			// [<0>] name+0x12/0x34
			name := strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
			if name, _, _ = strings.Cut(name, "+"); name != "" && len(frames) < 6 {
				frames = append(frames, name)
			}
		}
		if len(frames) > 0 {
			where += ", stack " + strings.Join(frames, " < ")
		}
	}
	return where
}
