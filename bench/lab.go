//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/netlab"
)

// patience is how long one run of a launcher may take.
const patience = 3 * time.Minute

// lab is what all measurements share: the contenders, a scratch directory,
// and the list of processes that must not outlive the program.
type lab struct {
	quick  bool
	rounds int    // overrides each measurement's own, 0 does not
	dir    string // scratch; TMPDIR of everything started
	mark   string // an environment entry that everything started carries

	musterBin   string // "" where it is missing
	torchrunBin string // "" where torch is missing
	python      string
	worker      string
	echo        string
	client      string // workload/store_client.py
	server      string // workload/store_server.py
	meet        string
	meetPy      string // workload/meet.py

	mu    sync.Mutex
	alive map[int]bool
	runs  int
}

// contenders that can be measured here, in the order in which they take turns.
func (l *lab) contenders() []string {
	var all []string
	if l.musterBin != "" {
		all = append(all, muster)
	}
	if l.torchrunBin != "" {
		all = append(all, torchrun)
	}
	return append(all, floor)
}

// n picks the number of rounds.
func (l *lab) n(full, quick int) int {
	switch {
	case l.rounds > 0:
		return l.rounds
	case l.quick:
		return quick
	}
	return full
}

// argv is the command line that starts nproc workers under a contender, with
// the launcher's flags (both launchers take the same).
func (l *lab) argv(contender string, nproc int, flags []string, command ...string) []string {
	if contender == floor {
		restarts, dir := "0", "-"
		for i, f := range flags {
			switch {
			case strings.HasPrefix(f, "--max-restarts="):
				restarts = strings.TrimPrefix(f, "--max-restarts=")
			case f == "--log-dir":
				dir = flags[i+1]
			}
		}
		return append([]string{l.worker, "bare", strconv.Itoa(nproc), restarts, dir}, command...)
	}
	argv := []string{l.torchrunBin}
	if contender == muster {
		argv = []string{l.musterBin, "run"}
	}
	argv = append(argv, "--standalone", "--nproc-per-node="+strconv.Itoa(nproc))
	argv = append(argv, flags...)
	return append(append(argv, "--no-python"), command...)
}

// job is one process that was started, and what it leaves behind.
type job struct {
	l      *lab
	pid    int
	begin  int64 // monotonic nanoseconds
	end    int64
	status syscall.WaitStatus
	usage  syscall.Rusage
	dir    string // of this job: events, stderr
}

// console says where a job's stdout and stderr go; nil is a file of the job's own.
type console struct{ stdin, stdout, stderr *os.File }

// start starts argv. Its events file is made, empty.
func (l *lab) start(argv []string, c console) (*job, error) { return l.startOn(nil, argv, c) }

// startOn is start on a host of a netlab, if it is not nil.
func (l *lab) startOn(host *netlab.Host, argv []string, c console) (*job, error) {
	l.mu.Lock()
	l.runs++
	dir := filepath.Join(l.dir, "run"+strconv.Itoa(l.runs))
	l.mu.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	events, err1 := os.Create(filepath.Join(dir, "events"))
	out, err2 := os.Create(filepath.Join(dir, "console"))
	null, err3 := os.Open(os.DevNull)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	defer events.Close()
	defer out.Close()
	defer null.Close()
	files := []uintptr{cmp.Or(c.stdin, null).Fd(), cmp.Or(c.stdout, out).Fd(), cmp.Or(c.stderr, out).Fd()}
	// Without OMP_NUM_THREADS both launchers would print a line about it.
	env := append(os.Environ(), "BENCH_EVENTS="+events.Name(), "TMPDIR="+l.dir, "OMP_NUM_THREADS=1", l.mark)
	j := &job{l: l, dir: dir}
	var err error
	// Held over the fork, so that stop finds what is being started.
	l.mu.Lock()
	defer l.mu.Unlock()
	j.begin = now()
	fork := func() (err error) {
		j.pid, err = syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
			Env: env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true},
		})
		return err
	}
	if host != nil {
		err = host.Do(fork)
	} else {
		err = fork()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	l.alive[j.pid] = true
	return j, nil
}

// wait waits for the job's end, which is timed first of all.
func (j *job) wait() error {
	late := time.AfterFunc(patience, func() { j.signal(syscall.SIGKILL) })
	var err error
	for {
		_, err = syscall.Wait4(j.pid, &j.status, 0, &j.usage)
		if err != syscall.EINTR {
			break
		}
	}
	j.end = now()
	j.l.mu.Lock()
	delete(j.l.alive, j.pid)
	j.l.mu.Unlock()
	if !late.Stop() {
		return fmt.Errorf("process %d was killed after %v: %s", j.pid, patience, j.console())
	}
	return err
}

// signal reaches the job only while it is not waited for.
func (j *job) signal(sig syscall.Signal) {
	j.l.mu.Lock()
	defer j.l.mu.Unlock()
	if j.l.alive[j.pid] {
		syscall.Kill(j.pid, sig)
	}
}

// expect waits and checks the exit status.
func (j *job) expect(status int) error {
	if err := j.wait(); err != nil {
		return err
	}
	if !j.status.Exited() || j.status.ExitStatus() != status {
		return fmt.Errorf("exit status %d (signal %d), want %d: %s", j.status.ExitStatus(), j.status.Signal(), status, j.console())
	}
	return nil
}

func (j *job) seconds() float64 { return float64(j.end-j.begin) / 1e9 }

// cpu of the job and all that it waited for, in seconds.
func (j *job) cpu() float64 { return float64(j.usage.Utime.Nano()+j.usage.Stime.Nano()) / 1e9 }

// console is the end of what the job printed.
func (j *job) console() string {
	text, _ := os.ReadFile(filepath.Join(j.dir, "console"))
	if len(text) > 2000 {
		text = text[len(text)-2000:]
	}
	return strings.TrimSpace(string(text))
}

// discard removes what the job left.
func (j *job) discard() { os.RemoveAll(j.dir) }

// event is one note of a worker.
type event struct {
	What                    string
	Rank, Restart, PID      int
	At /* ns */, Additional int64
}

func (j *job) events() ([]event, error) {
	text, err := os.ReadFile(filepath.Join(j.dir, "events"))
	if err != nil {
		return nil, err
	}
	var all []event
	for line := range strings.Lines(string(text)) {
		var e event
		if _, err := fmt.Sscan(line, &e.What, &e.Rank, &e.Restart, &e.PID, &e.At, &e.Additional); err != nil {
			return nil, fmt.Errorf("event %q: %w", line, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// started waits until n workers of an attempt have begun.
func (j *job) started(n, restart int) ([]event, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		all, err := j.events()
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(e event) bool { return e.What != "start" || e.Restart != restart })
		if len(all) >= n {
			return all, nil
		}
		if syscall.Kill(j.pid, 0) != nil || zombie(j.pid) {
			break
		}
	}
	return nil, fmt.Errorf("%d workers did not start: %s", n, j.console())
}

func zombie(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return strings.Contains(string(text), "State:\tZ")
}

// stop ends everything that was started and is still there, by pid: launchers
// first, so that they may end their workers, then what carries the mark.
func (l *lab) stop() {
	l.mu.Lock()
	for pid := range maps.Keys(l.alive) {
		syscall.Kill(pid, syscall.SIGTERM)
	}
	left := len(l.alive)
	l.mu.Unlock()
	if left > 0 {
		time.Sleep(500 * time.Millisecond)
	}
	for _, pid := range marked(l.mark) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// now reads the clock that the workers read.
func now() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// build prepares the scratch directory: the workloads and the contenders.
func (l *lab) build() error {
	for _, w := range []struct {
		name string
		path *string
	}{{"worker", &l.worker}, {"echo", &l.echo}, {"meet", &l.meet}} {
		*w.path = filepath.Join(l.dir, w.name)
		cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", *w.path, "./bench/workload/"+w.name)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s (run bench from the root of the repository): %w: %s", w.name, err, out)
		}
	}
	l.client, _ = filepath.Abs("bench/workload/store_client.py")
	l.server, _ = filepath.Abs("bench/workload/store_server.py")
	l.meetPy, _ = filepath.Abs("bench/workload/meet.py")
	return nil
}

// find sets the contenders that are there and returns what is missing.
func (l *lab) find(musterBin string) (missing []string) {
	if path, err := filepath.Abs(musterBin); err == nil && executable(path) {
		l.musterBin = path
	} else {
		missing = append(missing, "muster: "+musterBin+" is not there; make build")
	}
	python := os.Getenv("MUSTER_PYTHON")
	if python == "" {
		cache, _ := os.UserCacheDir()
		python = filepath.Join(cache, "muster", "venv", "bin", "python3")
	}
	found := filepath.Join(filepath.Dir(python), "torchrun")
	if executable(python) && executable(found) {
		l.python, l.torchrunBin = python, found
	} else {
		missing = append(missing, "torchrun: not beside "+python+"; make venv installs it, MUSTER_PYTHON names another interpreter")
	}
	return missing
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type()&fs.ModeType == 0 && info.Mode()&0o111 != 0
}
