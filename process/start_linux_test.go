package process_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
)

// noEnvs are the Envs of n workers without variables of their own.
func noEnvs(n int) map[int]map[string]string {
	envs := map[int]map[string]string{}
	for i := range n {
		envs[i] = nil
	}
	return envs
}

// Source: _validate_full_rank in multiprocessing/__init__.py.
func TestStartValidates(t *testing.T) {
	one := map[int][]string{0: nil}
	for _, tt := range []struct {
		name string
		cfg  process.Config
		want []string // lines
	}{
		{"nothing to run", process.Config{Args: one, Envs: noEnvs(1)},
			[]string{"a worker needs an entrypoint or a function, and not both"}},
		{"both to run", process.Config{Entrypoint: "true", Func: "echo", Args: one, Envs: noEnvs(1)},
			[]string{"a worker needs an entrypoint or a function, and not both"}},
		{"a rank without variables", process.Config{Entrypoint: "true", Args: map[int][]string{0: nil, 1: nil}, Envs: noEnvs(1)},
			[]string{"envs, local rank mapping mismatch, expected: {0, 1}, actual: {0}"}},
		{"too many variables", process.Config{Entrypoint: "true", Args: one, Envs: noEnvs(2)},
			[]string{"envs, local rank mapping mismatch, expected: {0}, actual: {0, 1}"}},
		{"no workers but variables", process.Config{Entrypoint: "true", Envs: noEnvs(1)},
			[]string{"envs, local rank mapping mismatch, expected: set(), actual: {0}"}},
		{"ranks from one", process.Config{Entrypoint: "true", Args: map[int][]string{1: nil}, Envs: noEnvs(1)},
			[]string{"args, local rank mapping mismatch, expected: {0}, actual: {1}"}},
		{"a gap", process.Config{Func: "echo", Inputs: map[int][]byte{0: nil, 2: nil}, Envs: noEnvs(2)},
			[]string{"inputs, local rank mapping mismatch, expected: {0, 1}, actual: {0, 2}"}},
		{"inputs and args", process.Config{Func: "echo", Inputs: map[int][]byte{0: nil}, Args: one, Envs: noEnvs(1)},
			[]string{"inputs are for functions, which take no args then"}},
		{"inputs of a program", process.Config{Entrypoint: "true", Inputs: map[int][]byte{0: nil}, Envs: noEnvs(1)},
			[]string{"inputs are for functions, which take no args then"}},
		{"two args of a function", process.Config{Func: "echo", Args: map[int][]string{0: {"a", "b"}}, Envs: noEnvs(1)},
			[]string{"args, local rank 0: a function takes one, got 2"}},
		{"unknown function", process.Config{Func: "nobody", Args: one, Envs: noEnvs(1)},
			[]string{`no function "nobody" is registered; call Register before Start and before FuncMain`}},
		{"NUL in an argument", process.Config{Entrypoint: "true", Args: map[int][]string{0: {"a", "b\x00c"}}, Envs: noEnvs(1)},
			[]string{`args, local rank 0: argument 2, "b\x00c", holds a NUL byte`}},
		{"variables that cannot be", process.Config{Entrypoint: "true", Args: one, Envs: map[int]map[string]string{0: {"": "x", "A=B": "y", "C": "z\x00"}}},
			[]string{
				`envs, local rank 0: ""="x" cannot be an environment variable`,
				`envs, local rank 0: "A=B"="y" cannot be an environment variable`,
				`envs, local rank 0: "C"="z\x00" cannot be an environment variable`,
			}},
		{"logs for fewer", process.Config{Entrypoint: "true", Args: map[int][]string{0: nil, 1: nil}, Envs: noEnvs(2), Logs: attempt(t, 1, logs.Config{})},
			[]string{
				"stdouts, local rank mapping mismatch, expected: {0, 1}, actual: {0}",
				"stderrs, local rank mapping mismatch, expected: {0, 1}, actual: {0}",
			}},
		{"logs for more", process.Config{Entrypoint: "true", Args: one, Envs: noEnvs(1), Logs: attempt(t, 2, logs.Config{})},
			[]string{
				"stdouts, local rank mapping mismatch, expected: {0}, actual: {0, 1}",
				"stderrs, local rank mapping mismatch, expected: {0}, actual: {0, 1}",
			}},
		{"CPUs that cannot be", process.Config{Entrypoint: "true", Args: one, Envs: noEnvs(1), CPUs: map[int][]int{0: {0, -1}}},
			[]string{"CPUs, local rank 0: -1 is not a CPU"}},
		{"everything at once", process.Config{
			Args: map[int][]string{0: nil, 2: nil}, Envs: noEnvs(1), CPUs: map[int][]int{-1: {0}, 2: {0}},
			UninterruptibleTimeout: -time.Hour,
		}, []string{
			"args, local rank mapping mismatch, expected: {0, 1}, actual: {0, 2}",
			"envs, local rank mapping mismatch, expected: {0, 1}, actual: {0}",
			"CPUs, local rank -1 is not one of {0, 1}",
			"CPUs, local rank 2 is not one of {0, 1}",
			"a worker needs an entrypoint or a function, and not both",
			"uninterruptible timeout is -1h0m0s, must not be negative",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := supervisor(t, process.SupervisorConfig{})
			g, err := s.Start(tt.cfg)
			if g != nil || err == nil {
				t.Fatalf("started, %v", err)
			}
			if d := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); d != "" {
				t.Error(d)
			}
		})
	}
}

// file makes a file and returns its path.
func file(t *testing.T, text string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prog")
	if err := testproc.WriteProgram(path, text); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStartErrors(t *testing.T) {
	s := supervisor(t, process.SupervisorConfig{})
	empty, plain := t.TempDir(), file(t, "#!/bin/sh\n", 0o644)
	long := strings.Repeat("x", 200<<10)
	for _, tt := range []struct {
		name, entry string
		args        []string
		path        string // of the error; "": entry
		errno       syscall.Errno
		message     string // after the path
	}{
		{name: "missing", entry: empty + "/prog", errno: syscall.ENOENT, message: "no such file or directory"},
		{name: "not in PATH", entry: "prog", errno: syscall.ENOENT,
			message: "prog is not in any directory of PATH: no such file or directory"},
		{name: "not executable", entry: plain, errno: syscall.EACCES, message: "permission denied"},
		{name: "a directory", entry: empty, errno: syscall.EACCES, message: "permission denied"},
		{name: "below a file", entry: plain + "/prog", errno: syscall.ENOTDIR, message: "not a directory"},
		{name: "no program", entry: file(t, "nonsense\n", 0o755), errno: syscall.ENOEXEC, message: "exec format error"},
		{name: "no interpreter", entry: file(t, "#! /nowhere/python -u\n", 0o755), errno: syscall.ENOENT,
			message: "interpreter /nowhere/python of its #! line: no such file or directory"},
		{name: "an interpreter that may not be executed", entry: file(t, "#!"+plain+"\n", 0o755), errno: syscall.EACCES,
			message: "interpreter " + plain + " of its #! line: permission denied"},
		{name: "an interpreter's line with a carriage return", entry: file(t, "#!/bin/sh\r\n", 0o755), errno: syscall.ENOENT,
			message: "interpreter /bin/sh\r of its #! line: no such file or directory"},
		{name: "a long argument", entry: "/bin/true", args: []string{long}, errno: syscall.E2BIG, message: "argument list too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := s.Start(process.Config{
				Entrypoint: tt.entry, Args: map[int][]string{0: tt.args}, Envs: noEnvs(1),
				Env: []string{"PATH=" + empty + ":" + filepath.Dir(plain) + "x"},
			})
			if g != nil || err == nil {
				t.Fatalf("got %v, %v", g, err)
			}
			start, ok := errors.AsType[*process.StartError](err)
			if !ok || start.LocalRank != 0 || start.Path != tt.entry || !errors.Is(err, tt.errno) {
				t.Errorf("got %#v", err)
			}
			if want := "start worker 0: " + tt.entry + ": " + tt.message; err.Error() != want {
				t.Errorf("got %q, want %q", err, want)
			}
		})
	}
	if !s.HasCgroup() {
		return
	}
	// None of them is taken for trouble with the cgroup.
	lab := testproc.New(t)
	if r := wait(t, start(t, s, workers(lab, do("exit:0")))); r.IsFailed() || !s.HasCgroup() {
		t.Errorf("afterwards: %+v, cgroups %v", r, s.HasCgroup())
	}
}

// The worker's PATH counts, not the program's.
func TestLookup(t *testing.T) {
	lab := testproc.New(t)
	dir := t.TempDir()
	if err := os.Symlink(testproc.Program(), filepath.Join(dir, "prog")); err != nil {
		t.Fatal(err)
	}
	denied := filepath.Dir(file(t, "", 0o644)) // has a prog that may not be executed
	s := supervisor(t, process.SupervisorConfig{})
	cfg := workers(lab, do("env:PATH"), do("env:PATH"))
	cfg.Entrypoint = "prog"
	paths := []string{dir, "/nowhere:" + denied + ":" + dir}
	for i, path := range paths {
		cfg.Envs[i]["PATH"] = path
	}
	if r := wait(t, start(t, s, cfg)); r.IsFailed() {
		t.Errorf("failed: %+v", r.Failures)
	}
	if d := cmp.Diff([]string{"PATH=" + paths[1], "PATH=" + paths[0]}, lab.Lines(2)); d != "" {
		t.Error(d)
	}

	cfg.Envs[1]["PATH"] = denied
	_, err := s.Start(cfg)
	if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), denied+"/prog is not executable (mode -rw-r--r--)") {
		t.Errorf("got %v", err)
	}
	lab.NoMore() // what can be known beforehand starts nothing
}

// Source: process.md P5; torchrun leaves the ranks below running.
func TestStartErrorEndsLowerRanks(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		good, bad := t.TempDir(), filepath.Dir(file(t, "nonsense", 0o755))
		if err := os.Symlink(testproc.Program(), filepath.Join(good, "prog")); err != nil {
			t.Fatal(err)
		}
		var seen journal
		cfg := workers(lab, do("ignore:15", "spawn:setsid:hang", "hang"), do("hang"), do("hang"), do("hang"))
		cfg.Entrypoint, cfg.Logger = "prog", seen.logger()
		for i, dir := range []string{good, good, bad, good} {
			cfg.Envs[i]["PATH"] = dir
		}
		cfg.Logs = attempt(t, 4, quiet)
		g, err := s.Start(cfg)
		failure, ok := errors.AsType[*process.StartError](err)
		if g != nil || !ok || failure.LocalRank != 2 || failure.Path != bad+"/prog" || failure.Err != syscall.ENOEXEC {
			t.Fatalf("got %v, %#v", g, err)
		}
		lab.CheckNothingLeft()
		for rank, want := range []bool{true, true, false, false} {
			if got := strings.Contains(seen.String(), fmt.Sprintf(`"worker ended" role=default local_rank=%d`, rank)); got != want {
				t.Errorf("worker %d ran: %v, want %v", rank, got, want)
			}
		}
	})
}

func TestExit(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		for _, tt := range []struct {
			step string
			want int
		}{
			{"exit:0", 0}, {"exit:1", 1}, {"exit:137", 137}, {"exit:255", 255}, {"exit:256", 0},
			{"kill:9", -9}, {"kill:1", -1}, {"kill:15", -15},
		} {
			t.Run(tt.step, func(t *testing.T) {
				lab := testproc.New(t)
				cfg := workers(lab, do("alloc:8", tt.step))
				cfg.Envs[0]["TORCHELASTIC_ERROR_FILE"] = "/tmp/no such file"
				before := time.Now()
				g := start(t, s, cfg)
				pid := g.PIDs()[0]
				r := wait(t, g)
				x := r.Exits[0]
				if x.Time.Before(before) || x.Time.After(time.Now()) {
					t.Errorf("ended at %v, not within the test", x.Time)
				}
				if x.MaxRSS < 8<<20 || x.UserTime+x.SystemTime <= 0 || x.UserTime+x.SystemTime > testproc.Patience {
					t.Errorf("used %d bytes, %v + %v", x.MaxRSS, x.UserTime, x.SystemTime)
				}
				x.Time, x.MaxRSS, x.UserTime, x.SystemTime = time.Time{}, 0, 0, 0
				want := process.Exit{PID: pid, Code: tt.want, ErrorFile: "/tmp/no such file"}
				if d := cmp.Diff(want, x); d != "" {
					t.Error(d)
				}
				if _, failed := r.Failures[0]; failed != (tt.want != 0) || r.IsFailed() != failed {
					t.Errorf("failures %v", r.Failures)
				}
				if g.PIDs()[0] != pid {
					t.Errorf("PIDs %v afterwards", g.PIDs())
				}
			})
		}
	})
}

func TestCoreDumped(t *testing.T) {
	if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || strings.HasPrefix(string(pattern), "|") {
		t.Skipf("needs a system that writes core files: core_pattern %q, %v", pattern, err)
	}
	s := supervisor(t, process.SupervisorConfig{})
	for _, limit := range []string{"0", "unlimited"} {
		script := "cd " + t.TempDir() + " && ulimit -c " + limit + " || exit 42; kill -ABRT $$"
		g := start(t, s, process.Config{Entrypoint: "/bin/sh", Args: map[int][]string{0: {"-c", script}}, Envs: noEnvs(1)})
		switch x := wait(t, g).Exits[0]; {
		case x.Code == 42:
			t.Skip("needs the right to raise the limit of core files")
		case x.Code != -6 || x.CoreDumped != (limit != "0"):
			t.Errorf("limit %s: code %d, core dumped %v", limit, x.Code, x.CoreDumped)
		}
	}
}

// A worker that ends well does not disturb the others.
func TestEarlySuccess(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("say:up"), do("gate", "say:up", "exit:0")))
	first := lab.PID("up")
	if first != g.PIDs()[0] {
		t.Errorf("pid %d, want one of %v", first, g.PIDs())
	}
	awaitEnd(t, first)
	lab.OpenGate()
	lab.PID("up")
	if r := wait(t, g); r.IsFailed() || !r.Exits[0].Time.Before(r.Exits[1].Time) {
		t.Errorf("got %+v", r.Exits)
	}
}

func TestEnvironment(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	show := do("env:BASE", "env:BOTH", "env:RANK", "env:EMPTY", "env:TWICE")
	cfg := workers(lab, show)
	cfg.Env = append(cfg.Env, "BASE=a=b", "BOTH=base", "BOTH=twice", "EMPTY=x", "TWICE=first", "TWICE=last")
	cfg.Envs[0] = map[string]string{"BOTH": "mine", "RANK": "0", "EMPTY": ""}
	given := map[string]string{"BOTH": "mine", "RANK": "0", "EMPTY": ""}
	if r := wait(t, start(t, s, cfg)); r.IsFailed() {
		t.Fatalf("failed: %+v", r.Failures)
	}
	if d := cmp.Diff([]string{"BASE=a=b", "BOTH=mine", "EMPTY=", "RANK=0", "TWICE=last"}, lab.Lines(5)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(given, cfg.Envs[0]); d != "" {
		t.Error("the caller's map was changed:", d)
	}
}

// Without Env the program's own environment counts, at the time of the start.
func TestOwnEnvironment(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	for _, entry := range lab.Env() {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
	t.Setenv("BASE", "of the program")
	cfg := workers(lab, do("env:BASE"))
	cfg.Env = nil
	wait(t, start(t, s, cfg))
	if got := lab.Line(); got != "BASE=of the program" {
		t.Errorf("got %q", got)
	}
}

func TestArguments(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	cfg := workers(lab, do("args"), do("args"))
	cfg.Args[0] = append(cfg.Args[0], "a b", "", "--ü=$HOME", "*")
	wait(t, start(t, s, cfg))
	if d := cmp.Diff([]string{"", "a b||--ü=$HOME|*"}, lab.Lines(2)); d != "" {
		t.Error(d)
	}
}

// Each worker leads a session and a process group of its own, and this program is
// its parent.
func TestSession(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("stat"), do("stat"), do("stat")))
	wait(t, g)
	want := map[string]bool{}
	for _, pid := range g.PIDs() {
		want[fmt.Sprintf("stat=%d %d %d %d", pid, os.Getpid(), pid, pid)] = true
	}
	got := map[string]bool{}
	for _, line := range lab.Lines(3) {
		got[line] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A worker has the descriptors 0, 1 and 2 and no others, also where this program
// got some that are not to be closed, if it is the Supervisor's altogether. Otherwise
// nothing is done to descriptors that are not the Supervisor's.
func TestDescriptors(t *testing.T) {
	t.Run("whole program", func(t *testing.T) { descriptors(t, true) })
	t.Run("embedded", func(t *testing.T) { descriptors(t, false) })
}

func descriptors(t *testing.T, whole bool) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{Guard: true, WholeProgram: whole})
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	inherited, err := syscall.Dup(int(null.Fd())) // without close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	cfg := workers(lab, do("fds"), do("fds"))
	cfg.Logs = attempt(t, 2, logs.Config{Tee: logs.StdSpec{All: logs.StdOut}})
	wait(t, start(t, s, cfg))
	flags, err := unix.FcntlInt(uintptr(inherited), unix.F_GETFD, 0)
	if err != nil {
		t.Fatal(err)
	}
	if whole != (flags&unix.FD_CLOEXEC != 0) {
		t.Errorf("the descriptor's flags are %d", flags)
	}
	open := []string{"0", "1", "2"}
	if !whole {
		open = append(open, strconv.Itoa(inherited))
	}
	slices.Sort(open) // as the worker lists them
	want := "fds=" + strings.Join(open, ",")
	if d := cmp.Diff([]string{want, want}, lab.Lines(2)); d != "" {
		t.Error(d)
	}
}

// quiet keeps output from the console.
var quiet = logs.Config{Redirects: logs.StdSpec{All: logs.StdAll}}

// attempt is where the output of n workers goes.
func attempt(t *testing.T, n int, cfg logs.Config) *logs.Attempt {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	run, err := logs.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var workers []logs.Worker
	for i := range n {
		workers = append(workers, logs.Worker{LocalRank: i, Rank: i, Role: "default"})
	}
	a, err := run.Attempt(0, workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := a.Finish(context.Background()); err != nil {
			t.Error(err)
		}
		if err := run.Close(true); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestLogs(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	dir := t.TempDir()
	cfg := workers(lab, do("out:hello", "err:oops", "env:TORCHELASTIC_ERROR_FILE"))
	cfg.Logs = attempt(t, 1, logs.Config{Dir: dir, Redirects: logs.StdSpec{All: logs.StdAll}})
	r := wait(t, start(t, s, cfg))
	for path, want := range map[string]string{r.Stdouts[0]: "hello\n", r.Stderrs[0]: "oops\n"} {
		if got, err := os.ReadFile(path); string(got) != want || !strings.HasPrefix(path, dir) {
			t.Errorf("%q: got %q, %v, want %q", path, got, err, want)
		}
	}
	errorFile := r.Exits[0].ErrorFile
	if got, want := lab.Line(), "TORCHELASTIC_ERROR_FILE="+errorFile; got != want || !strings.HasPrefix(errorFile, dir) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(cfg.Envs[0]) != 0 {
		t.Errorf("the caller's map was changed: %v", cfg.Envs[0])
	}
}

func TestStdin(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cfg := workers(lab, do("in"))
	cfg.Stdin = in
	g := start(t, s, cfg)
	if _, err := out.WriteString("some input\n"); err != nil {
		t.Fatal(err)
	}
	out.Close()
	wait(t, g)
	if got := lab.Line(); got != "in=some input" {
		t.Errorf("got %q", got)
	}
}

func TestCPUs(t *testing.T) {
	all := usableCPUs(t)
	if len(all) < 2 {
		t.Skipf("needs two CPUs, has %v", all)
	}
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	for _, tt := range []struct {
		cpus []int
		want string
	}{
		{all[1:2], fmt.Sprint(all[1])},
		{all[:1], fmt.Sprint(all[0])},
		{all[:2], fmt.Sprintf("%d,%d", all[0], all[1])},
		{nil, strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ","), "[]")},
	} {
		cfg := workers(lab, do("cpus"))
		cfg.CPUs = map[int][]int{0: tt.cpus}
		wait(t, start(t, s, cfg))
		if got := lab.Line(); got != "cpus="+tt.want {
			t.Errorf("%v: got %q, want %q", tt.cpus, got, tt.want)
		}
	}
	for cpu, text := range map[int]string{1000: "bind to CPUs [1000]: invalid argument", 1 << 20: "bind to CPUs [1048576]: no such CPU"} {
		cfg := workers(lab, do("cpus"), do("cpus"))
		cfg.CPUs = map[int][]int{1: {cpu}}
		_, err := s.Start(cfg)
		if failure, ok := errors.AsType[*process.StartError](err); !ok || failure.LocalRank != 1 || failure.Err.Error() != text {
			t.Errorf("CPU %d: got %v, want %q", cpu, err, text)
		}
	}
}

func usableCPUs(t *testing.T) []int {
	t.Helper()
	if runtime.NumCPU() < 2 {
		return nil
	}
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	wait(t, start(t, s, workers(lab, do("cpus"))))
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimPrefix(lab.Line(), "cpus="), ",") {
		var cpu int
		if _, err := fmt.Sscan(part, &cpu); err != nil {
			t.Fatal(err)
		}
		cpus = append(cpus, cpu)
	}
	return cpus
}
