//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// patience bounds every wait. Nothing is expected to take this long; it turns a
// hang into a failure that says what was there. Many of PyTorch's processes that
// start at once on a busy machine take a minute.
const patience = 3 * time.Minute

// soon bounds what the kernel does by itself, as when the processes of a launcher
// that was killed are. It is less than the grace that workers have.
const soon = 20 * time.Second

// What jobs are told through their environment. The tag marks every process of
// a job, however far it has strayed.
const (
	envTag   = "MUSTER_E2E_TAG"
	envBoard = "MUSTER_E2E_BOARD"
	envGate  = "MUSTER_E2E_GATE"
)

// A launcher is a program that takes torchrun's command line.
type launcher struct {
	name string
	argv []string
}

// muster is the program under test.
func muster(t testing.TB) launcher {
	t.Helper()
	if os.Getenv("MUSTER_BIN") != "" {
		return launcher{"MUSTER_BIN", []string{filepath.Join(bin, "torchrun")}}
	}
	return launcher{"muster", []string{filepath.Join(bin, "muster"), "run"}}
}

// torchrun is the judge; without PyTorch the test is skipped.
func torchrun(t testing.TB) launcher {
	t.Helper()
	return launcher{"torchrun", []string{pypeer.Torchrun(t)}}
}

// judge is torchrun for a test that shows one of its defects.
func judge(t testing.TB) launcher {
	t.Helper()
	if os.Getenv("MUSTER_JUDGE") == "" {
		t.Skip("shows what torchrun does wrong; `make judge` runs it")
	}
	return torchrun(t)
}

// A job is one run of a launcher.
type job struct {
	t      testing.TB
	l      launcher
	cmd    *exec.Cmd
	tag    string
	tmp    string // its TMPDIR
	board  *board
	gate   *gate
	outErr [2]*os.File
	ended  chan struct{}
}

// setup is what a test may want to have otherwise.
type setup struct {
	dir    string   // working directory
	env    []string // added to the usual environment
	bare   []string // the whole environment; no tag, board or gate
	stdin  *os.File // default /dev/null
	stdout *os.File // default a file that out() reads
	stderr *os.File // default a file that errs() reads
	attr   *syscall.SysProcAttr
	wrap   []string // command line put in front, such as prlimit
	closed []int    // descriptors that shall be closed at the start
}

var jobs atomic.Int64

// start starts a job: a launcher, its flags (split at blanks), the program.
func start(t testing.TB, l launcher, s setup, flags string, program ...string) *job {
	t.Helper()
	j := &job{
		t: t, l: l, ended: make(chan struct{}),
		tag: fmt.Sprintf("%d-%d", os.Getpid(), jobs.Add(1)),
		tmp: t.TempDir(), board: newBoard(t), gate: newGate(t),
	}
	argv := slices.Concat(s.wrap, l.argv, strings.Fields(flags), program)
	if len(s.closed) > 0 {
		redirect := "exec \"$@\""
		for _, fd := range s.closed {
			redirect += fmt.Sprintf(" %d>&-", fd)
		}
		argv = append([]string{"/bin/sh", "-c", redirect, "sh"}, argv...)
	}
	j.cmd = exec.Command(argv[0], argv[1:]...)
	j.cmd.Dir, j.cmd.SysProcAttr = s.dir, s.attr
	j.cmd.Env = s.bare
	if s.bare == nil {
		j.cmd.Env = append(usualEnv(),
			"TMPDIR="+j.tmp, envTag+"="+j.tag, envBoard+"="+j.board.path, envGate+"="+j.gate.path)
		j.cmd.Env = append(j.cmd.Env, s.env...)
	}
	for i := range j.outErr {
		f, err := os.Create(filepath.Join(t.TempDir(), "console"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		j.outErr[i] = f
	}
	j.cmd.Stdin, j.cmd.Stdout, j.cmd.Stderr = nil, j.outErr[0], j.outErr[1]
	if s.stdin != nil {
		j.cmd.Stdin = s.stdin
	}
	if s.stdout != nil {
		j.cmd.Stdout = s.stdout
	}
	if s.stderr != nil {
		j.cmd.Stderr = s.stderr
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", l.name, err)
	}
	t.Cleanup(j.destroy)
	go func() {
		defer close(j.ended)
		j.cmd.Wait()
	}()
	return j
}

// run starts a job and returns it when it has ended.
func run(t testing.TB, l launcher, s setup, flags string, program ...string) *job {
	t.Helper()
	j := start(t, l, s, flags, program...)
	j.status()
	return j
}

// usualEnv is the environment of the tests without what would tell a launcher
// how to behave.
func usualEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		for _, prefix := range []string{"PET_", "TORCH", "MUSTER_", "OMP_", "LOGLEVEL=", "PYTHON", "MASTER_",
			"RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "CUDA_VISIBLE", "HIP_VISIBLE", "TMPDIR="} {
			if strings.HasPrefix(kv, prefix) {
				return true
			}
		}
		return false
	})
	return append(env, "OMP_NUM_THREADS=1")
}

// worker is the command line of a worker that takes these steps.
func worker(steps ...string) []string { return slices.Concat([]string{exe, "worker"}, steps) }

// workers starts a job of test workers.
func workers(t testing.TB, l launcher, s setup, flags string, steps ...string) *job {
	t.Helper()
	return start(t, l, s, flags+" --no-python", worker(steps...)...)
}

// status waits for the end: the exit status, or -N for death by signal N.
func (j *job) status() int {
	j.t.Helper()
	j.within(patience)
	ws := j.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return -int(ws.Signal())
	}
	return ws.ExitStatus()
}

// statusOrHang is status for a job that may never end: -1000 then.
func (j *job) statusOrHang() int {
	select {
	case <-j.ended:
		return j.status()
	case <-time.After(patience):
		return -1000
	}
}

// within waits for the end no longer than d.
func (j *job) within(d time.Duration) {
	j.t.Helper()
	select {
	case <-j.ended:
	case <-time.After(d):
		j.t.Fatalf("%s still runs after %v\nprocesses: %v\n%s", j.l.name, d, j.processes(), j.console())
	}
}

// want checks the exit status.
func (j *job) want(status int) *job {
	j.t.Helper()
	if got := j.status(); got != status {
		j.t.Fatalf("%s ended with status %d, want %d\n%s", j.l.name, got, status, j.console())
	}
	return j
}

func (j *job) out() string  { return contents(j.t, j.outErr[0].Name()) }
func (j *job) errs() string { return contents(j.t, j.outErr[1].Name()) }

func (j *job) console() string {
	return fmt.Sprintf("--- stdout\n%s--- stderr\n%s---", j.out(), j.errs())
}

// says checks that the job's stderr has each of the texts.
func (j *job) says(texts ...string) *job {
	j.t.Helper()
	for _, text := range texts {
		if !strings.Contains(j.errs(), text) {
			j.t.Errorf("%s does not say %q\n%s", j.l.name, text, j.console())
		}
	}
	return j
}

// saysNot checks that the job's stderr has none of the texts.
func (j *job) saysNot(texts ...string) *job {
	j.t.Helper()
	for _, text := range texts {
		if strings.Contains(j.errs(), text) {
			j.t.Errorf("%s says %q\n%s", j.l.name, text, j.console())
		}
	}
	return j
}

func (j *job) signal(sig syscall.Signal) {
	j.t.Helper()
	if err := j.cmd.Process.Signal(sig); err != nil {
		j.t.Fatalf("send %v to %s: %v", sig, j.l.name, err)
	}
}

// processes lists the live processes that carry the job's tag, by command line.
func (j *job) processes() map[int]string {
	found := map[int]string{}
	mark := []byte(envTag + "=" + j.tag + "\x00")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if env, err := os.ReadFile(dir + "/environ"); err == nil && bytes.Contains(env, mark) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			line, _ := os.ReadFile(dir + "/cmdline")
			found[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		}
	}
	return found
}

// noneLeft checks that every process of the job is gone after d at the latest.
// It waits on the processes themselves, not on the clock.
func (j *job) noneLeft(d time.Duration) *job {
	j.t.Helper()
	deadline := time.Now().Add(d)
	for pid := range j.processes() {
		awaitDeath(pid, time.Until(deadline))
	}
	if left := j.processes(); len(left) > 0 {
		j.t.Errorf("%s left %d processes behind: %v\n%s", j.l.name, len(left), left, j.console())
	}
	return j
}

// awaitDeath waits until a process has ended, at most d.
func awaitDeath(pid int, d time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(d)
	for {
		left := max(time.Until(deadline), 0)
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err != unix.EINTR {
			return
		}
	}
}

// destroy ends whatever is left of the job.
func (j *job) destroy() {
	j.gate.open()
	j.cmd.Process.Kill()
	<-j.ended
	for {
		left := j.processes()
		if len(left) == 0 {
			return
		}
		for pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
			awaitDeath(pid, time.Second)
		}
	}
}

// A board is a named pipe on which the processes of a job report lines.
type board struct {
	path  string
	lines chan string
	seen  map[string]int
}

func newBoard(t testing.TB) *board {
	t.Helper()
	b := &board{path: filepath.Join(t.TempDir(), "board"), lines: make(chan string, 10_000), seen: map[string]int{}}
	if err := unix.Mkfifo(b.path, 0o666); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that it never ends while workers come and go.
	f, err := os.OpenFile(b.path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(f); s.Scan(); {
			b.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { f.Close(); <-done })
	return b
}

// line returns the next line that a process of the job wrote.
func (j *job) line() string {
	j.t.Helper()
	select {
	case l := <-j.board.lines:
		return l
	default:
	}
	select {
	case l := <-j.board.lines:
		return l
	case <-j.ended:
		// What was written before the end is still in the pipe, and workers of other
		// agents may write yet.
		select {
		case l := <-j.board.lines:
			return l
		case <-time.After(soon):
		}
		j.t.Fatalf("%s ended while its workers were awaited\n%s", j.l.name, j.console())
	case <-time.After(patience):
		j.t.Fatalf("no report from a worker of %s for %v\n%s", j.l.name, patience, j.console())
	}
	return ""
}

// await reads the board until each of the lines has been there.
func (j *job) await(lines ...string) *job {
	j.t.Helper()
	missing := map[string]int{}
	for _, l := range lines {
		missing[l]++
	}
	for l := range missing {
		for j.board.seen[l] > 0 && missing[l] > 0 {
			j.board.seen[l]--
			missing[l]--
		}
	}
	maps.DeleteFunc(missing, func(_ string, n int) bool { return n == 0 })
	for len(missing) > 0 {
		l := j.line()
		switch missing[l]--; missing[l] {
		case -1:
			j.board.seen[l]++
			delete(missing, l)
		case 0:
			delete(missing, l)
		}
	}
	return j
}

// forget lets await wait for what is reported from now on.
func (b *board) forget() {
	for len(b.lines) > 0 {
		<-b.lines
	}
	clear(b.seen)
}

// rest returns the reports not yet read of a job that has ended, in order.
func (j *job) rest() []string {
	j.t.Helper()
	j.status()
	end := "end of " + j.tag
	f, err := os.OpenFile(j.board.path, os.O_WRONLY, 0)
	if err != nil {
		j.t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintln(f, end)
	var all []string
	for {
		l := j.line()
		if l == end {
			return all
		}
		all = append(all, l)
	}
}

// A gate holds back whoever passes it until it is opened. It is a file lock, so
// that those who come late pass at once.
type gate struct {
	path string
	file *os.File
}

func newGate(t testing.TB) *gate {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gate")
	f, err := os.Create(path)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &gate{path, f}
}

func (g *gate) open() { unix.Flock(int(g.file.Fd()), unix.LOCK_UN) }

func itoa(n int) string { return strconv.Itoa(n) }

func contents(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// script writes a file for the test and returns its path.
func script(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// glob lists the files that match, relative to dir.
func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range paths {
		paths[i], _ = filepath.Rel(dir, p)
	}
	return paths
}

// one is glob where exactly one file must match; it returns its whole path.
func one(t testing.TB, dir, pattern string) string {
	t.Helper()
	paths := glob(t, dir, pattern)
	if len(paths) != 1 {
		t.Fatalf("%s/%s matches %d files, want 1: %q", dir, pattern, len(paths), paths)
	}
	return filepath.Join(dir, paths[0])
}

// collect reads r to its end in the background.
func collect(r io.Reader) func() string {
	var buf bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(&buf, r)
	}()
	return func() string { <-done; return buf.String() }
}
