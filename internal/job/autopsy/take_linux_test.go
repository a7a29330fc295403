package autopsy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// slack is how much longer than its deadline Take may be on a busy machine: far less
// than what it must not wait for.
const slack = testproc.Patience

// take looks at processes; their ranks are their places in the list. It has all the
// time that it needs on a busy machine, unless the test is about the deadline.
func take(t *testing.T, cfg autopsy.Config, targets ...autopsy.Target) *autopsy.Report {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = testproc.Patience
	}
	for i := range targets {
		targets[i].Rank, targets[i].LocalRank = i, i
	}
	return autopsy.Take(t.Context(), "a test", targets, cfg)
}

// start runs a program until the test ends and waits until it has said "ready" on
// stdout. Its stderr goes to the file that start returns.
func start(t testing.TB, env []string, program string, args ...string) (pid int, stderr string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(append(os.Environ(), testproc.Unpaused), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr = filepath.Join(t.TempDir(), "stderr.log")
	file, err := os.Create(stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = file
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		text, _ := os.ReadFile(stderr)
		t.Fatalf("%s said %q, %v; stderr:\n%s", program, line, err, text)
	}
	return cmd.Process.Pid, stderr
}

// startPython runs a script with the interpreter that has PyTorch.
func startPython(t *testing.T, script string, env ...string) (pid int, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return start(t, append(env, "OMP_NUM_THREADS=1"), pypeer.Python(t), path)
}

// needPySpy skips where the interpreter's environment has no py-spy.
func needPySpy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(pypeer.Python(t)), "py-spy")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs py-spy beside the interpreter; `make venv` installs it: %v", err)
	}
	return path
}

// fakePySpy makes a program that is run in py-spy's place.
func fakePySpy(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "py-spy")
	if err := testproc.WriteProgram(path, "#!/bin/sh\n"+script+"\n"); err != nil {
		t.Fatal(err)
	}
	return path
}

const sleeper = `
import time
def inner():
    print("ready", flush=True)
    while True: time.sleep(1000)
def outer(): inner()
outer()
`

func functions(fs []autopsy.Frame) string {
	var names []string
	for _, f := range fs {
		names = append(names, f.Function)
	}
	return strings.Join(names, " ")
}

// A worker that tells where its threads are is not stopped by py-spy, which takes long on a busy machine. One that
// does not is looked at.
func TestWitnessFirst(t *testing.T) {
	pid, _ := startPython(t, sleeper)
	awaitState(t, pid, 'S')
	ran := filepath.Join(t.TempDir(), "ran")
	cfg := autopsy.Config{PySpy: fakePySpy(t, "echo > "+ran+"; exit 1"), Timeout: 10 * time.Second}
	for _, tt := range []struct {
		name, want string
		witness    func(context.Context, int) ([]byte, error)
		spied      bool
	}{
		{"answers", "the worker", func(context.Context, int) ([]byte, error) {
			return []byte(`{"dumps": [], "threads": [{"main": true, "frames": [{"function": "inner", "file": "a.py", "line": 4}]}]}`), nil
		}, false},
		{"does not answer", "", func(ctx context.Context, _ int) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }, true},
		{"is not there", "", func(context.Context, int) ([]byte, error) { return nil, errors.New("nothing answers") }, true},
	} {
		_ = os.Remove(ran)
		w := take(t, cfg, autopsy.Target{PID: pid, Witness: tt.witness}).Workers[0]
		if _, err := os.Stat(ran); w.Python.Source != tt.want || (err == nil) != tt.spied {
			t.Errorf("one that %s: source %q, py-spy ran: %v", tt.name, w.Python.Source, err == nil)
		}
	}
}

func TestPySpy(t *testing.T) {
	needPySpy(t)
	pid, _ := startPython(t, sleeper)
	awaitState(t, pid, 'S')
	w := take(t, autopsy.Config{}, autopsy.Target{PID: pid}).Workers[0]
	if w.Python.Source != "py-spy" || len(w.Python.Threads) != 1 {
		t.Fatalf("source %q, %d threads, problems %q", w.Python.Source, len(w.Python.Threads), w.Python.Problems)
	}
	main := w.Python.Threads[0]
	if got := functions(main.Frames); got != "inner outer <module>" || !main.Main || main.TID != pid {
		t.Errorf("thread %+v", main)
	}
	if w.State != "sleeping" || !strings.Contains(w.Command, "worker.py") {
		t.Errorf("state %q, command %q", w.State, w.Command)
	}
	n := w.Native
	if n.ThreadCount != 1 {
		t.Errorf("native: %+v", n)
	}
	if th := n.Threads[0]; th.TID != pid || th.Name == "" || th.State == "" {
		t.Errorf("native thread: %+v", th)
	}
	checkRunning(t, pid)
}

// checkRunning checks that a process was not left stopped.
func checkRunning(t *testing.T, pid int) {
	t.Helper()
	stat, err := procfs.Read(pid)
	if err != nil || !strings.ContainsRune("RSD", rune(stat.State)) {
		t.Errorf("afterwards the worker is in state %c, %v", stat.State, err)
	}
}

func TestHundredThreads(t *testing.T) {
	needPySpy(t)
	pid, _ := startPython(t, `
import threading, time
gate = threading.Barrier(101)
def work():
    gate.wait()
    time.sleep(1000)
for i in range(100): threading.Thread(target=work, daemon=True, name=f"worker-{i}").start()
gate.wait()
print("ready", flush=True)
time.sleep(1000)
`)
	r := take(t, autopsy.Config{}, autopsy.Target{PID: pid})
	w := r.Workers[0]
	if len(w.Python.Threads) != 101 || w.Native.ThreadCount != 101 || len(w.Native.Threads) != 101 {
		t.Errorf("%d Python threads (%s, %q), %d of %d native ones", len(w.Python.Threads), w.Python.Source, w.Python.Problems,
			len(w.Native.Threads), w.Native.ThreadCount)
	}
}

// A process that uses the CPU is told from one that sleeps.
func TestRunning(t *testing.T) {
	pid, _ := startPython(t, "print('ready', flush=True)\nwhile True: pass\n")
	awaitState(t, pid, 'R')
	w := take(t, autopsy.Config{PySpy: "/nowhere"}, autopsy.Target{PID: pid}).Workers[0]
	if w.State != "running" || w.Native.Threads[0].State != "running" {
		t.Errorf("%s, %+v", w.State, w.Native)
	}
}

func TestStopped(t *testing.T) {
	needPySpy(t)
	pid, _ := startPython(t, sleeper)
	other, _ := startPython(t, sleeper)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitState(t, pid, 'T')
	r := take(t, autopsy.Config{}, autopsy.Target{PID: pid}, autopsy.Target{PID: other})
	w := r.Workers[0]
	if w.State != "stopped" || w.Python.Source != "py-spy --nonblocking" || functions(w.Python.Threads[0].Frames) != "inner outer <module>" {
		t.Errorf("state %q, source %q, problems %q", w.State, w.Python.Source, w.Python.Problems)
	}
	if g := r.Groups()[0]; !g.Odd || !slices.Equal(g.Ranks, []int{0}) || g.State != "stopped" {
		t.Errorf("the first group is %+v", g)
	}
	if stat, err := procfs.Read(pid); err != nil || stat.State != 'T' {
		t.Errorf("afterwards it is in state %c, %v", stat.State, err)
	}
}

// awaitState waits until a process is in a state; nothing tells of that but
// wait(2), which os/exec has.
func awaitState(t *testing.T, pid int, state byte) {
	t.Helper()
	for late := time.Now().Add(testproc.Patience); ; {
		stat, err := procfs.Read(pid)
		if err == nil && stat.State == state {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("process %d is in state %c, %v", pid, stat.State, err)
		}
		_, _ = unix.Poll(nil, 1)
	}
}

func TestZombieAndGone(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, cmd.Process.Pid, 'Z')
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	r := take(t, autopsy.Config{}, autopsy.Target{PID: cmd.Process.Pid}, autopsy.Target{PID: gone.Process.Pid})
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got := r.Summary(); got != "rank 0 zombie, rank 1 gone" {
		t.Errorf("summary %q", got)
	}
}

func TestNotPython(t *testing.T) {
	needPySpy(t)
	lab := testproc.New(t)
	pid, stop := hang(t, lab)
	defer stop()
	began := time.Now()
	r := take(t, autopsy.Config{Timeout: 2 * testproc.Patience}, autopsy.Target{PID: pid})
	if took := time.Since(began); took > slack { // it does not wait for its time to be up
		t.Errorf("took %v", took)
	}
	p := r.Workers[0].Python
	if p.Source != "" || len(p.Problems) != 1 || !strings.Contains(p.Problems[0], "is not a Python interpreter") {
		t.Errorf("Python: %+v", p)
	}
	if !strings.HasSuffix(r.Summary(), "no Python stacks") {
		t.Errorf("summary %q", r.Summary())
	}
}

// hang starts a worker that is not Python.
func hang(t *testing.T, lab *testproc.Lab, env ...string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command(testproc.Program(), testproc.Args("say:ready", "hang")...)
	cmd.Env = append(append(lab.Env(), testproc.Unpaused), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lab.PID("ready")
	return cmd.Process.Pid, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// What sounds like a secret in a command line is in no evidence.
func TestCommandLine(t *testing.T) {
	pid, _ := start(t, nil, "/bin/sh", "-c", "echo ready; sleep 1000; exit 0", "train.sh", "--api-key=hidden", "--hf-token", "hidden", "--lr", "3")
	w := take(t, autopsy.Config{}, autopsy.Target{PID: pid}).Workers[0]
	if want := "train.sh --api-key=*** --hf-token *** --lr 3"; !strings.HasSuffix(w.Command, want) {
		t.Errorf("got %q, want %q", w.Command, want)
	}
}

// A shell script that runs Python shows its child's stacks.
func TestWrapper(t *testing.T) {
	needPySpy(t)
	script := filepath.Join(t.TempDir(), "w.py")
	if err := os.WriteFile(script, []byte(sleeper), 0o644); err != nil {
		t.Fatal(err)
	}
	pid, _ := start(t, nil, "/bin/sh", "-c", `"$0" "$1"; exit 0`, pypeer.Python(t), script)
	r := take(t, autopsy.Config{}, autopsy.Target{PID: pid})
	if got := r.Summary(); !strings.HasPrefix(got, "rank 0 in inner (w.py:") || !strings.HasSuffix(got, "in a child process") {
		t.Errorf("summary %q; %+v", got, r.Workers[0].Children)
	}
}

// Helper programs that hang are killed with what they started, in time.
func TestHangingPySpy(t *testing.T) {
	lab := testproc.New(t)
	for _, entry := range lab.Env() {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value) // so that what is left over is found
	}
	targets := make([]autopsy.Target, 4)
	for i := range targets {
		pid, _ := startPython(t, sleeper, "TESTPROC_TAG=none")
		targets[i] = autopsy.Target{PID: pid}
	}
	for _, script := range []string{"sleep 1000 & sleep 1000", "trap '' TERM INT; while :; do sleep 1000; done"} {
		cfg := autopsy.Config{PySpy: fakePySpy(t, script), Timeout: 2 * time.Second}
		began := time.Now()
		r := take(t, cfg, targets...)
		if took := time.Since(began); took > cfg.Timeout+slack {
			t.Errorf("%s: took %v", script, took)
		}
		for _, w := range r.Workers {
			if text := strings.Join(w.Python.Problems, "\n"); !strings.Contains(text, "did not answer in time") || w.Python.Source != "" {
				t.Errorf("%s: source %q, problems %q", script, w.Python.Source, text)
			}
			if w.Native.ThreadCount != 1 {
				t.Errorf("%s: the native state is missing: %+v", script, w.Native)
			}
			checkRunning(t, w.PID)
		}
		lab.CheckNothingLeft()
	}
}

// A py-spy that is killed may leave the worker stopped; it is continued.
func TestPySpyLeavesWorkerStopped(t *testing.T) {
	pid, _ := startPython(t, sleeper)
	fake := fakePySpy(t, `[ "$5" = --nonblocking ] && exit 1
kill -STOP $4; echo "Error: lost it" >&2; exit 1`)
	w := take(t, autopsy.Config{PySpy: fake}, autopsy.Target{PID: pid}).Workers[0]
	if text := strings.Join(w.Python.Problems, "\n"); !strings.Contains(text, "lost it") {
		t.Errorf("problems %q", text)
	}
	checkRunning(t, pid)
}

func TestPySpySays(t *testing.T) {
	pid, _ := startPython(t, sleeper)
	tests := []struct{ name, script, want string }{
		{"not allowed", `echo "Permission Denied: Try running again with elevated permissions" >&2; exit 1`, "SYS_PTRACE"},
		{"fails", `echo "Error: Failed to find python version" >&2; echo "Stack backtrace:" >&2; exit 1`, "py-spy: Failed to find python version\n"},
		{"fails in silence", `exit 3`, "exit status 3"},
		{"garbage", `echo hello`, "py-spy's JSON"},
		{"too much", `exec head -c 20000000 /dev/zero`, "more than 16777216 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := take(t, autopsy.Config{PySpy: fakePySpy(t, tt.script)}, autopsy.Target{PID: pid}).Workers[0]
			text := strings.Join(w.Python.Problems, "\n") + "\n"
			if !strings.Contains(text, tt.want) || !strings.Contains(text, "pip install py-spy") {
				t.Errorf("problems %q, want %q and what to do", text, tt.want)
			}
		})
	}
}

// The worker ends while it is looked at.
func TestEndsMeanwhile(t *testing.T) {
	pid, _ := startPython(t, sleeper)
	fake := fakePySpy(t, `kill -9 $4; while [ -e /proc/$4/exe ]; do :; done; echo "Error: gone" >&2; exit 1`)
	w := take(t, autopsy.Config{PySpy: fake}, autopsy.Target{PID: pid}).Workers[0]
	if w.Python.Source != "" || len(w.Python.Problems) == 0 {
		t.Errorf("Python: %+v", w.Python)
	}
}

// Somebody else's worker is looked at without the rights for it.
func TestNoPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs to be root, to have another user look at this one's process")
	}
	lab := testproc.New(t)
	pid, stop := hang(t, lab)
	defer stop()
	dir, err := os.MkdirTemp("", "autopsy")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "autopsy.test")
	copyFile(t, testproc.Program(), program)
	cmd := exec.Command(program, "take-as-another-user", strconv.Itoa(pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env = []string{"GORACE=atexit_sleep_ms=0"}
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r autopsy.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	w := r.Workers[0]
	text := strings.Join(slices.Concat(w.Problems, w.Python.Problems), "\n")
	for _, want := range []string{"environment: open /proc/", "permission denied"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems %q, want %q in them", text, want)
		}
	}
	if w.State != "sleeping" || w.Native.ThreadCount == 0 {
		t.Errorf("state %q, native %+v", w.State, w.Native)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	syscall.ForkLock.RLock() // as testproc.WriteProgram does
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// A context that is done ends it at once.
func TestContextDone(t *testing.T) {
	lab := testproc.New(t)
	pid, stop := hang(t, lab)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	r := autopsy.Take(ctx, "", []autopsy.Target{{PID: pid}}, autopsy.Config{Timeout: time.Hour})
	if took := time.Since(began); took > slack {
		t.Errorf("took %v", took)
	}
	if len(r.Workers) != 1 || r.Workers[0].PID != pid {
		t.Errorf("workers %+v", r.Workers)
	}
}

// A worker in uninterruptible sleep is told apart, and does not hold up anything.
func TestUninterruptible(t *testing.T) {
	lab := testproc.New(t)
	cmd := exec.Command(testproc.Program(), testproc.Args("say:ready", "vfork")...)
	cmd.Env = lab.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // killed
	}()
	pid := lab.PID("ready")
	for late := time.Now().Add(testproc.Patience); ; {
		r := take(t, autopsy.Config{Timeout: time.Second}, autopsy.Target{PID: pid})
		w := r.Workers[0]
		if slices.ContainsFunc(w.Native.Threads, func(t autopsy.NativeThread) bool { return t.State == "uninterruptible sleep" }) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("no thread is in uninterruptible sleep: %+v", w.Native)
		}
	}
}

// BenchmarkTake says how long the evidence of some workers takes with py-spy.
func BenchmarkTake(b *testing.B) {
	python := pypeer.Python(b)
	path := filepath.Join(b.TempDir(), "w.py")
	if err := os.WriteFile(path, []byte(sleeper), 0o644); err != nil {
		b.Fatal(err)
	}
	var targets []autopsy.Target
	for rank := range 8 {
		pid, _ := start(b, nil, python, path)
		targets = append(targets, autopsy.Target{Rank: rank, PID: pid})
	}
	for _, n := range []int{1, 4, 8} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var slowest float64
			for b.Loop() {
				r := autopsy.Take(b.Context(), "", targets[:n], autopsy.Config{})
				for _, w := range r.Workers {
					if w.Python.Source != "py-spy" {
						b.Fatalf("source %q, problems %q", w.Python.Source, w.Python.Problems)
					}
					slowest = max(slowest, w.Python.Seconds)
				}
			}
			b.ReportMetric(slowest*1e3, "ms-for-stacks-at-most")
		})
	}
}
