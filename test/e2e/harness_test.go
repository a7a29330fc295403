//go:build linux

package e2e

import (
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
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// patience bounds every wait. Nothing is expected to take this long; it turns a
// hang into a failure that says what was there. Many of PyTorch's processes that
// start at once on a busy machine take a minute.
const patience = 10 * time.Minute

// soon bounds what the kernel does by itself, as when the processes of a launcher
// that was killed are. It is less than the grace that workers have.
const soon = 20 * time.Second

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
	tag    testproc.Tag
	tmp    string // its TMPDIR
	board  *board
	gate   *testproc.Gate
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
	forked bool     // torchrun may be a fork of a process that has imported it
}

// start starts a job: a launcher, its flags (split at blanks), the program. With E2E_WARM, that is
// started by a Python script if it is none itself, and muster forks the script from a template.
func start(t testing.TB, l launcher, s setup, flags string, program ...string) *job {
	t.Helper()
	j := &job{
		t: t, l: l, ended: make(chan struct{}),
		tag: testproc.NewTag(), tmp: t.TempDir(), board: newBoard(t), gate: testproc.NewGate(t),
	}
	argv := slices.Concat(s.wrap, l.argv, strings.Fields(flags), program)
	warm, python := slices.Index(argv, "--no-python"), []string(nil)
	if warm >= 0 && os.Getenv("E2E_WARM") != "" {
		name := "testdata/exec.py"
		if l.name == "muster" {
			name = "testdata/warm.py"
		}
		script, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		argv[warm], python = script, []string{"PYTHON_EXEC=" + pypeer.Python(t)}
		if l.name == "muster" {
			argv = slices.Insert(argv, warm, "--warm")
		}
	}
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
		j.cmd.Env = slices.Concat(usualEnv(), []string{"TMPDIR=" + j.tmp}, testproc.Env(j.board.Board, j.gate, j.tag), s.env)
	}
	j.cmd.Env = append(j.cmd.Env, python...)
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
	begin := j.cmd.Start
	if s.forked && l.name == "torchrun" {
		begin = func() error { return fork(t, j.cmd) }
	}
	if err := begin(); err != nil {
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
// how to behave. The report is torchrun's, to be compared with it.
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
	return append(env, "OMP_NUM_THREADS=1", "MUSTER_REPORT=torchrun")
}

// worker is the command line of a worker that takes these steps.
func worker(steps ...string) []string { return append([]string{exe}, testproc.Args(steps...)...) }

// workers starts a job of test workers.
func workers(t testing.TB, l launcher, s setup, flags string, steps ...string) *job {
	t.Helper()
	return start(t, l, s, flags+" --no-python", worker(steps...)...)
}

// status waits for the end: the exit status, or -N for death by signal N.
func (j *job) status() int {
	j.t.Helper()
	j.within(patience)
	for _, line := range grep(j.errs(), "no warm start") {
		if !strings.Contains(line, "a worker died in its first") {
			j.t.Error(line)
		}
	}
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
		j.t.Fatalf("%s still runs after %v\nprocesses: %v\n%s", j.l.name, d, j.tag.Processes(), j.console())
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

// noneLeft checks that every process of the job is gone after d at the latest.
// It waits on the processes themselves, not on the clock.
func (j *job) noneLeft(d time.Duration) *job {
	j.t.Helper()
	deadline := time.Now().Add(d)
	for pid := range j.tag.Processes() {
		testproc.AwaitEnd(pid, time.Until(deadline))
	}
	if left := j.tag.Processes(); len(left) > 0 {
		j.t.Errorf("%s left %d processes behind: %v\n%s", j.l.name, len(left), left, j.console())
	}
	return j
}

// destroy ends whatever is left of the job.
func (j *job) destroy() {
	j.gate.Open()
	j.cmd.Process.Kill()
	<-j.ended
	for {
		left := j.tag.Processes()
		if len(left) == 0 {
			return
		}
		for pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
			testproc.AwaitEnd(pid, time.Second)
		}
	}
}

// A board is the workers', with what await has read of it and did not wait for.
type board struct {
	*testproc.Board
	seen map[string]int
}

func newBoard(t testing.TB) *board {
	t.Helper()
	return &board{testproc.NewBoard(t), map[string]int{}}
}

// line returns the next line that a process of the job wrote.
func (j *job) line() string {
	j.t.Helper()
	select {
	case l := <-j.board.Lines:
		return l
	default:
	}
	select {
	case l := <-j.board.Lines:
		return l
	case <-j.ended:
		// What was written before the end is still in the pipe, and workers of other
		// agents may write yet.
		select {
		case l := <-j.board.Lines:
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
	for len(b.Lines) > 0 {
		<-b.Lines
	}
	clear(b.seen)
}

// rest returns the reports not yet read of a job that has ended, in order.
func (j *job) rest() []string {
	j.t.Helper()
	j.status()
	end := "end of " + string(j.tag)
	j.board.Write(j.t, end)
	var all []string
	for {
		l := j.line()
		if l == end {
			return all
		}
		all = append(all, l)
	}
}

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
	if err := testproc.WriteProgram(path, text); err != nil {
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
