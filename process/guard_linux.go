package process

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
	"github.com/muster-run/muster/internal/procfs"
)

// A guard is the process that ends what is left if this one is killed: the end of
// its pipe is the sign. It is told what to look for in lines of text,
//
//	c<path>           the cgroup that holds all workers
//	t<entry>          an entry in the environment of a worker and its descendants
//	w<pid> <start>    a worker that is in no cgroup, by number and start time
//	x<pid>            nothing is left of that worker
//	f<path>           a file or empty directory that this program would have removed
//
// and ended by SIGKILL, with its pipe still open, when nobody needs it any more. If it
// ends otherwise, another one takes its place. What holds when a guard starts is in a
// file that it reads first: a pipe has room for 64 KiB until somebody reads it.
type guard struct {
	pid  int           // 0: it did not start; the Supervisor's mu guards it
	in   *os.File      // its end of the pipe; nil once it is started; written with forking and mu held
	quit chan struct{} // closed when it is to end
	keep sync.WaitGroup

	mu   sync.Mutex // guards the rest
	pipe *os.File
	told *wards
}

func newGuard() (*guard, error) {
	g := &guard{quit: make(chan struct{}), told: newWards()}
	return g, g.connect()
}

func (g *guard) connect() (err error) {
	g.in, g.pipe, err = os.Pipe()
	return err
}

// start starts the process. It needs neither its output nor this program's
// directory, and one thread will do. With a pidfd, handle is a file that becomes
// readable when the guard ends.
func (g *guard) start(withPidfd bool) (pid int, handle *os.File, err error) {
	g.mu.Lock()
	in, records := g.in, g.told.records()
	g.in = nil
	g.mu.Unlock()
	defer in.Close()
	file, err := memoryFile(records)
	if err != nil {
		return 0, nil, fmt.Errorf("start the guard: %w", err)
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	attr := &syscall.SysProcAttr{Setsid: true}
	pidfd := -1
	if withPidfd {
		attr.PidFD = &pidfd
	}
	pid, err = syscall.ForkExec(selfPath(), []string{guardName}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{guardName + "=1", "GOMAXPROCS=1", "GOGC=off"},
		Files: []uintptr{in.Fd(), null.Fd(), null.Fd(), file.Fd()},
		Sys:   attr,
	})
	if err != nil {
		return 0, nil, fmt.Errorf("start the guard: %w", err)
	}
	if pidfd >= 0 {
		_ = unix.SetNonblock(pidfd, true) // for Go's poller
		handle = os.NewFile(uintptr(pidfd), "guard")
	}
	return pid, handle, nil
}

// memoryFile is a file that is nowhere, to be read from its beginning.
func memoryFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate(guardName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), guardName)
	if _, err = f.WriteString(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// awaitGuard waits for the end of a guard.
func awaitGuard(handle *os.File) error {
	defer handle.Close()
	conn, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
}

// tell sends records. A guard that is gone or hangs does not hold up anything.
func (g *guard) tell(records string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for line := range strings.Lines(records) {
		g.told.record(strings.TrimSuffix(line, "\n"))
	}
	if g.in == nil {
		_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(g.pipe, records)
	}
}

func (g *guard) tellCgroup(path string) { g.tell("c" + oneLine(path) + "\n") }

func (g *guard) tellTags(plans []plan) {
	var b strings.Builder
	for i := range plans {
		if tag := plans[i].tag; tag != "" {
			b.WriteString("t" + oneLine(tag) + "\n")
		}
	}
	if b.Len() > 0 {
		g.tell(b.String())
	}
}

func (g *guard) tellWorker(pid int, start uint64) { g.tell(fmt.Sprintf("w%d %d\n", pid, start)) }

func (g *guard) tellGone(pid int) { g.tell(fmt.Sprintf("x%d\n", pid)) }

func (g *guard) tellFile(path string) {
	if !strings.Contains(path, "\n") {
		g.tell("f" + path + "\n")
	}
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }

// stop ends the guard and reaps it. forking keeps another one from being started.
func (g *guard) stop(forking sync.Locker) {
	forking.Lock()
	if g.in != nil {
		g.in.Close()
		g.mu.Lock()
		g.in = nil
		g.mu.Unlock()
	}
	close(g.quit)
	if g.pid != 0 {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
	forking.Unlock()
	g.keep.Wait()
	if g.pid != 0 {
		_, _ = waitid(unix.P_PID, g.pid, unix.WEXITED, nil)
	}
	g.pipe.Close()
}

// GuardMain turns the program into the guard if that is what it was started as,
// and does not return then. A program that makes a Supervisor with a guard calls
// it first in main; one that does not call it gets no guard.
func GuardMain() {
	calledGuardMain.Store(true)
	if !startedAsGuard() {
		return
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	setThreadName(guardName)
	w := readWards(io.MultiReader(os.NewFile(3, guardName), os.Stdin))
	w.end(time.Now().Add(guardTime))
	os.Exit(0)
}

// guardTime bounds the guard's work. What has SIGKILL and is still there then is
// stuck in the kernel.
const guardTime = 5 * time.Second

// wards are what a guard looks for.
type wards struct {
	cgroup  string
	tags    []string
	workers map[int]uint64 // pid → start time
	files   []string
}

func newWards() *wards { return &wards{workers: map[int]uint64{}} }

// records are what tells another guard the same.
func (w *wards) records() string {
	var b strings.Builder
	if w.cgroup != "" {
		b.WriteString("c" + w.cgroup + "\n")
	}
	for _, tag := range w.tags {
		b.WriteString("t" + tag + "\n")
	}
	for pid, start := range w.workers {
		fmt.Fprintf(&b, "w%d %d\n", pid, start)
	}
	for _, file := range w.files {
		b.WriteString("f" + file + "\n")
	}
	return b.String()
}

// maxFiles bounds wards.files.
const maxFiles = 10_000

// maxRecord bounds a record; environment entries of more than 128 KiB do not
// exist.
const maxRecord = 256 << 10

// readWards reads records to their end, which is the sender's: whatever is in them
// must not make it seem to come earlier.
func readWards(r io.Reader) *wards {
	w := newWards()
	lines := bufio.NewReaderSize(r, maxRecord)
	for {
		line, err := lines.ReadSlice('\n')
		if err == nil {
			if w.record(string(line[:len(line)-1])); line[0] == 'c' && w.cgroup != "" {
				cgroup.RemoveStale(path.Dir(w.cgroup), cgroupPrefix, endStale)
			}
			continue
		}
		for err == bufio.ErrBufferFull {
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return w
		}
	}
}

// endStale kills what is left of the workers of a program that was killed together with
// its guard. What else somebody has put into their cgroup lives on.
func endStale(dir *cgroup.Dir) {
	pids, _ := dir.PIDs()
	for _, pid := range pids {
		p, err := lookAt(pid)
		if err != nil {
			continue
		}
		env, err := procfs.Environ(pid)
		env = append([]byte{0}, env...)
		if err != nil || !bytes.Contains(env, []byte("\x00"+errorFileVar+"=")) && !bytes.Contains(env, []byte("\x00TORCHELASTIC_RUN_ID=")) {
			continue
		}
		if l := openLeftover(p, true); l != nil {
			_ = l.signal(syscall.SIGKILL)
			l.close()
		}
	}
}

// record takes one record. One that makes no sense is dropped, as is one without
// its end: the sender may have been killed in the middle of it.
func (w *wards) record(line string) {
	if line == "" {
		return
	}
	switch kind, text := line[0], line[1:]; kind {
	case 'c':
		if path.IsAbs(text) {
			w.cgroup = text
		}
	case 't':
		// Only the last ones can still have processes, but a restarted job has few
		// attempts and old tags do no harm.
		if strings.Contains(text, "=") && !slices.Contains(w.tags, text) {
			w.tags = append(w.tags, text)
		}
	case 'w':
		number, ticks, _ := strings.Cut(text, " ")
		pid, err := strconv.Atoi(number)
		start, err2 := strconv.ParseUint(ticks, 10, 64)
		if err == nil && err2 == nil && pid > 1 {
			w.workers[pid] = start
		}
	case 'f':
		if path.IsAbs(text) && len(w.files) < maxFiles {
			w.files = append(w.files, path.Clean(text))
		}
	case 'x':
		if pid, err := strconv.Atoi(text); err == nil {
			delete(w.workers, pid)
		}
	}
}

// end kills what is left, until it has found nothing twice: a process may have
// forked just behind the one look.
func (w *wards) end(deadline time.Time) {
	var dir *cgroup.Dir
	if w.cgroup != "" {
		dir, _ = cgroup.Open(w.cgroup)
	}
	for clean := 0; clean < 2 && time.Now().Before(deadline); {
		clean++
		if dir != nil {
			if populated, err := dir.Populated(); err == nil && populated {
				_ = dir.Kill()
				clean = 0
			}
		}
		var dying []unix.PollFd
		for _, p := range w.find(dir) {
			if l := openLeftover(p, true); l != nil {
				_ = l.signal(syscall.SIGKILL)
				if l.pidfd >= 0 {
					dying = append(dying, unix.PollFd{Fd: int32(l.pidfd), Events: unix.POLLIN})
				}
				clean = 0
			}
		}
		waitFor(dying)
	}
	if dir != nil {
		_ = removeCgroup(dir)
	}
	for _, name := range w.files {
		_ = os.Remove(name)
	}
}

// waitFor waits, for a few milliseconds at most, until the processes have ended.
func waitFor(dying []unix.PollFd) {
	const pause = 5 // milliseconds
	until := time.Now().Add(4 * pause * time.Millisecond)
	for len(dying) > 0 && time.Now().Before(until) {
		if n, err := unix.Poll(dying, pause); n == 0 && err == nil {
			break
		}
		dying = slices.DeleteFunc(dying, func(p unix.PollFd) bool {
			if p.Revents != 0 {
				unix.Close(int(p.Fd))
			}
			return p.Revents != 0
		})
	}
	if len(dying) == 0 {
		_, _ = unix.Poll(nil, 1)
	}
	for _, p := range dying {
		unix.Close(int(p.Fd))
	}
}

// find lists the live processes that belong to the workers.
func (w *wards) find(dir *cgroup.Dir) []procfs.Stat {
	all, err := procfs.All()
	if err != nil {
		return nil
	}
	in := map[int]bool{}
	if dir != nil {
		pids, _ := dir.PIDs()
		for _, pid := range pids {
			in[pid] = true
		}
	}
	// A session keeps its leader's number from being used again. Where another
	// process has that number, nothing is left of the worker and its session.
	sessions := map[int]bool{}
	for pid := range w.workers {
		sessions[pid] = true
	}
	for _, p := range all {
		if start, ok := w.workers[p.PID]; ok && start != p.Start {
			delete(sessions, p.PID)
		}
	}
	self := os.Getpid()
	seed := func(p procfs.Stat) bool {
		return p.Alive() && p.PID != self && (in[p.PID] || sessions[p.Session] || hasTag(p, w.tags...))
	}
	return slices.DeleteFunc(closure(all, seed), func(p procfs.Stat) bool { return !p.Alive() || p.PID == self })
}
