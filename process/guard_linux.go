package process

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/procfs"
)

// A guard is the process that ends what is left if this one is killed: the end of
// its pipe is the sign. It is told what to look for in lines of text,
//
//	c<path>           the cgroup that holds all workers
//	t<entry>          an entry in the environment of a worker and its descendants
//	w<pid> <start>    a worker that is in no cgroup, by number and start time
//	x<pid>            nothing is left of that worker
//	n                 nothing is left of any worker so far
//	f<path>           a file or empty directory that this program would have removed
//
// and ended by SIGKILL, with its pipe still open, when nobody needs it any more. If it
// ends otherwise, another one takes its place. What holds when a guard starts is in a
// file that it reads first: a pipe has room for 64 KiB until somebody reads it.
//
// This is the parent's side; guarded is the child's. Every method may be called at any time.
// Two locks keep apart what takes long and what must not: forking is held while a process is
// started, mu only for a write to the pipe. A goroutine that needs both takes forking first. A
// record is in told before it is in a pipe, so the next guard knows it wherever the last one
// has ended.
type guard struct {
	log  *slog.Logger
	once sync.Once      // starts the first guard; forks of workers wait for it
	quit chan struct{}  // closed by stop
	keep sync.WaitGroup // replace, which alone waits for the processes

	forking sync.Mutex // guards the next three
	stopped bool       // no more are started
	cmd     *exec.Cmd  // the one that was started last; nil: none was
	lacking bool       // the last attempt to start one has failed, and the log says so

	mu   sync.Mutex // guards the next two
	pipe *os.File   // to the guard; nil before the first
	told told       // what the next guard reads first
}

// told are the records so far that still hold: those of workers (t, w, x) until nothing is
// left of any, the others (c, f) for good.
type told struct{ always, workers []byte }

const noGuard = "no guard: if this process is killed, processes that its workers started may keep running"

func newGuard(log *slog.Logger) *guard {
	return &guard{log: log, quit: make(chan struct{})}
}

// ensure starts the guard unless it runs, and does not wait for it to read: what it has
// to know is in a file already. A worker is forked only after it: the worker's
// parent-death signal does not reach what the worker has started by then.
func (g *guard) ensure() {
	if g == nil {
		return
	}
	g.once.Do(func() {
		cmd := g.start()
		g.keep.Go(func() { g.replace(cmd) })
	})
}

// start starts a guard and logs, once, why it cannot; nil: there is none. A guard needs
// neither its output nor this program's directory, and one thread will do.
func (g *guard) start() *exec.Cmd {
	g.forking.Lock()
	defer g.forking.Unlock()
	if g.stopped {
		return nil
	}
	if err := g.fork(); err != nil {
		if !g.lacking {
			g.log.Warn(noGuard, "error", err)
		}
		g.lacking = true
		return nil
	}
	g.lacking = false
	return g.cmd
}

func (g *guard) fork() error {
	in, pipe, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	g.mu.Lock()
	g.pipe.Close()
	g.pipe = pipe
	told := slices.Concat(g.told.always, g.told.workers)
	g.mu.Unlock()
	file, err := tempdir.InMemory(guardName, told)
	if err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	defer file.Close()
	cmd := &exec.Cmd{
		Path: selfPath(), Args: []string{guardName}, Dir: "/",
		Env:   []string{guardName + "=1", "GOMAXPROCS=1", "GOGC=off", "GODEBUG=containermaxprocs=0"},
		Stdin: in, ExtraFiles: []*os.File{file},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := children.Start(cmd); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	g.cmd = cmd
	return nil
}

// The first guard that ends is replaced at once. Where the next ends soon, too, or none can
// be started, replace waits before it starts another: leastPause, and twice as long each
// time, up to mostPause.
const (
	leastPause = time.Second
	mostPause  = time.Minute
)

// replace starts another guard whenever cmd, or the one after it, ends although nobody has
// told it to: the OOM killer may have chosen it. It starts one, too, where that has failed
// (cmd is nil).
func (g *guard) replace(cmd *exec.Cmd) {
	var pause time.Duration
	for {
		if cmd == nil {
			pause = max(pause, leastPause)
		} else {
			since := time.Now()
			_ = children.Wait(cmd)
			select {
			case <-g.quit:
				return
			default:
			}
			if time.Since(since) > 2*mostPause { // it was there for a while
				pause = 0
			}
			g.log.Warn("the guard has ended; starting another", "pid", cmd.Process.Pid)
		}
		select {
		case <-time.After(pause):
		case <-g.quit:
			return
		}
		pause = min(max(2*pause, leastPause), mostPause)
		cmd = g.start()
	}
}

// stop ends the guard, and keeps another one from being started.
func (g *guard) stop() {
	close(g.quit)
	g.forking.Lock()
	g.stopped = true
	if g.cmd != nil {
		_ = g.cmd.Process.Kill()
	}
	g.forking.Unlock()
	g.once.Do(func() {}) // waits for one that is being started
	g.keep.Wait()
	g.pipe.Close() // not before: the guard takes that for this program's end
}

// tell sends records, without those that hold a line's end. A guard that is gone or
// hangs does not hold up anything.
func (g *guard) tell(records ...string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var lines []byte
	for _, record := range records {
		if strings.Contains(record, "\n") {
			continue
		}
		line := append([]byte(record), '\n')
		switch lines = append(lines, line...); record[0] {
		case 'n':
			g.told.workers = nil
		case 'c', 'f':
			g.told.always = append(g.told.always, line...)
		default:
			g.told.workers = append(g.told.workers, line...)
		}
	}
	if g.pipe != nil && len(lines) > 0 {
		_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = g.pipe.Write(lines)
	}
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
	w := readGuarded(io.MultiReader(os.NewFile(3, guardName), os.Stdin))
	w.end(time.Now().Add(guardTime))
	os.Exit(0)
}

// guardTime bounds the guard's work. What has SIGKILL and is still there then is
// stuck in the kernel.
const guardTime = 5 * time.Second

// mostGuardPause is how long the guard waits at most for what has SIGKILL to end.
const mostGuardPause = 16 * time.Millisecond

// guarded is what a guard knows, by its records.
type guarded struct {
	cgroup  string
	tags    []string
	workers map[int]uint64 // pid → start time
	files   []string
}

func newGuarded() *guarded { return &guarded{workers: map[int]uint64{}} }

// maxFiles bounds guarded.files.
const maxFiles = 10_000

// maxRecord bounds a record; environment entries of more than 128 KiB do not
// exist.
const maxRecord = 256 << 10

// readGuarded reads records to their end, which is the sender's: whatever is in them
// must not make it seem to come earlier.
func readGuarded(r io.Reader) *guarded {
	w := newGuarded()
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

// endStale kills what is left, in its cgroup, of the workers of a program that was killed
// together with its guard. What somebody else has put into the cgroup lives on.
func endStale(dir *cgroup.Dir) {
	pids, _ := dir.PIDs()
	for _, pid := range pids {
		p, err := lookAt(pid)
		if err != nil {
			continue
		}
		if env, _ := procfs.Environ(pid); !isOfAWorker(env) {
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
func (w *guarded) record(line string) {
	if line == "" {
		return
	}
	switch kind, text := line[0], line[1:]; kind {
	case 'c':
		if path.IsAbs(text) {
			w.cgroup = text
		}
	case 't':
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
	case 'n':
		w.tags, w.workers = nil, map[int]uint64{}
	}
}

// end kills what is left, until it has found nothing twice: a process may have
// forked just after the first look.
func (w *guarded) end(deadline time.Time) {
	var dir *cgroup.Dir
	if w.cgroup != "" {
		dir, _ = cgroup.Open(w.cgroup)
	}
	clean := 0
	for pause := time.Millisecond; clean < 2 && time.Now().Before(deadline); pause = min(2*pause, mostGuardPause) {
		clean++
		if dir != nil {
			if populated, err := dir.Populated(); err == nil && populated {
				_ = dir.Kill()
				clean = 0
			}
		}
		for _, p := range w.find(dir) {
			if l := openLeftover(p, true); l != nil {
				_ = l.signal(syscall.SIGKILL)
				l.close()
				clean = 0
			}
		}
		time.Sleep(pause)
	}
	if dir != nil {
		_ = removeCgroup(dir)
	}
	for _, name := range w.files {
		_ = os.Remove(name)
	}
}

// find lists the live processes that belong to the workers.
func (w *guarded) find(dir *cgroup.Dir) []procfs.Stat {
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
