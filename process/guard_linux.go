package process

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
)

const (
	guardName = "muster-guard"
	selfPath  = "/proc/self/exe"
)

// A guard is the process that ends what is left if this one is killed. It reads
// records from a pipe; the end of the pipe without a farewell is the sign.
type guard struct {
	pid  int
	mu   sync.Mutex // one record at a time
	pipe *os.File
}

// startGuard starts the guard. It runs on the fork thread. It does not wait for
// it: the pipe keeps the records until the guard reads them.
func startGuard() (*guard, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pid, _, err := syscall.StartProcess(selfPath, []string{guardName}, &syscall.ProcAttr{
		Env:   []string{guardName + "=1", "GOMAXPROCS=1", "GOGC=off"},
		Files: []uintptr{uintptr(fds[0]), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	unix.Close(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	// Non-blocking, so that a guard that hangs never holds up the group.
	_ = unix.SetNonblock(fds[1], true)
	return &guard{pid: pid, pipe: os.NewFile(uintptr(fds[1]), "pipe to the guard")}, nil
}

// tell sends one record: its kind and a text without line breaks.
func (g *guard) tell(kind byte, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(g.pipe, "%c%s\n", kind, strings.ReplaceAll(text, "\n", " "))
}

// stop ends the guard and reaps it. The pipe stays open until it is gone, so
// that it never takes this for the agent's death.
func (g *guard) stop() {
	_ = syscall.Kill(g.pid, syscall.SIGKILL)
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(g.pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	g.pipe.Close()
}

// GuardMain turns the program into the guard if that is what it was started as,
// and does not return then. A program that makes a Supervisor with a guard calls
// it first in main.
func GuardMain() {
	if len(os.Args) != 1 || os.Args[0] != guardName || os.Getenv(guardName) != "1" {
		return
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	runGuard(os.Stdin)
	os.Exit(0)
}

type guarded struct {
	pid   int
	start uint64
	tag   string
}

func runGuard(records *os.File) {
	cgroupPath := ""
	workers := map[int]guarded{}
	lines := bufio.NewScanner(records)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			continue
		}
		switch text := line[1:]; line[0] {
		case 'c':
			cgroupPath = text
		case 'w':
			fields := strings.SplitN(text, " ", 3)
			if len(fields) != 3 {
				continue
			}
			pid, err := strconv.Atoi(fields[0])
			start, err2 := strconv.ParseUint(fields[1], 10, 64)
			if err == nil && err2 == nil && pid > 1 {
				workers[pid] = guarded{pid, start, fields[2]}
			}
		case 'x':
			if pid, err := strconv.Atoi(text); err == nil {
				delete(workers, pid)
			}
		}
	}
	endAll(workers, cgroupPath)
}

// endAll kills what is left of the workers: everything in their cgroup, their
// sessions, their descendants, and whatever carries their tag. It looks again
// until it has found nothing twice, for at most two seconds.
func endAll(workers map[int]guarded, cgroupPath string) {
	clean := 0
	for range 200 {
		found := false
		if cgroupPath != "" {
			_ = filepath.WalkDir(cgroupPath, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dir := cgroup.Dir{Path: path}
					if pids, err := dir.PIDs(); err == nil && len(pids) > 0 {
						found = true
					}
				}
				return nil
			})
			_ = cgroup.Kill(cgroupPath)
		}
		for _, p := range relatives(workers) {
			found = true
			if fd := openProcess(p); fd != nil {
				_ = signalPidfd(fd, syscall.SIGKILL)
				fd.Close()
			}
		}
		if !found {
			if clean++; clean == 2 {
				break
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if cgroupPath != "" {
		removeTree(cgroupPath)
	}
}

// relatives lists the live processes that belong to the workers.
func relatives(workers map[int]guarded) []proc {
	if len(workers) == 0 {
		return nil
	}
	tags := map[string]bool{}
	for _, w := range workers {
		if w.tag != "" {
			tags[w.tag] = true
		}
	}
	all := allProcesses()
	mine := map[int]bool{}
	for {
		grown := false
		for _, p := range all {
			if mine[p.pid] || p.state == 'Z' || p.state == 'X' || p.pid == os.Getpid() {
				continue
			}
			w, leader := workers[p.pid]
			_, session := workers[p.session]
			_, group := workers[p.group]
			if leader && w.start == p.start || !leader && (session || group) || mine[p.parent] || hasAnyTag(p.pid, tags) {
				mine[p.pid], grown = true, true
			}
		}
		if !grown {
			break
		}
	}
	return slices.DeleteFunc(all, func(p proc) bool { return !mine[p.pid] })
}

func hasAnyTag(pid int, tags map[string]bool) bool {
	for tag := range tags {
		if hasTag(pid, tag) {
			return true
		}
	}
	return false
}

func removeTree(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(dir, entry.Name()))
		}
	}
	_ = syscall.Rmdir(dir)
}
