package process_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/cgroup"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// A program with a guard is killed, and nothing is left of its workers.
func TestGuard(t *testing.T) {
	for _, tt := range []struct {
		name, mode string
		workers    []string
		says       int // lines of the workers
	}{
		{"cgroups", "cgroups", []string{
			"ignore:1/ignore:15/say:up/hang",
			"spawn:setsid:ignore:15|say:stray|hang/say:up/hang",
			"spawn:setsid,double,bare:ignore:15|say:stray|hang/say:up/hang",
		}, 5},
		{"no cgroups", "no cgroups", []string{
			"ignore:1/ignore:15/say:up/hang",
			"spawn::ignore:15|say:stray|hang/say:up/hang",
			"spawn:double:ignore:15|say:stray|hang/say:up/hang",
			"spawn:setsid:ignore:15|say:stray|hang/say:up/hang",
			"spawn:setsid,double:ignore:15|say:stray|hang/say:up/hang",
		}, 9},
		{"a worker has ended", "no cgroups", []string{"spawn:setsid,double:ignore:15|say:stray|hang/say:first/gate", "say:up/hang"}, 3},
		{"no workers", "cgroups", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.mode == "cgroups" && !supervisor(t, process.SupervisorConfig{}).HasCgroup() {
				t.Skip("needs the right to make a cgroup")
			}
			lab := testproc.New(t)
			cmd := program(t, lab, append([]string{"guarded", tt.mode}, tt.workers...)...)
			dir := filepath.Join(t.TempDir(), "dir")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(cmd.Env, leftFiles+"="+dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cgroup := ""
			pids := map[string][]int{}
			for range tt.says + 2 { // and the program's own
				word, rest, _ := strings.Cut(lab.Line(), " ")
				if word == "cgroup" {
					cgroup = rest
				} else if pid, err := strconv.Atoi(rest); err != nil {
					t.Fatalf("board: %s %q", word, rest)
				} else {
					pids[word] = append(pids[word], pid)
				}
			}
			await := ends(t, slices.Concat(pids["guard"], pids["up"], pids["stray"])...)
			if first := pids["first"]; len(first) > 0 {
				await := ends(t, first...)
				lab.OpenGate()
				await()
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			await()
			lab.CheckNothingLeft()
			if _, err := os.Stat(cgroup); cgroup != "(none)" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the cgroup is still there: %v", err)
			}
			// Without workers the program may have come to its own end first.
			if _, err := os.Stat(dir); tt.workers != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory is still there: %v", err)
			}
		})
	}
}

// A program that ends takes its guard with it.
func TestGuardEndsWithTheSupervisor(t *testing.T) {
	if err := supervisor(t, process.SupervisorConfig{Guard: true}).Close(); err != nil {
		t.Error("without having started anything:", err)
	}
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{Guard: true})
	for range 2 {
		wait(t, start(t, s, workers(lab, do("exit:0"))))
	}
	guard := s.GuardPID()
	st, err := procfs.Read(guard)
	if err != nil || !st.Alive() || st.Session != guard || st.Parent != os.Getpid() {
		t.Errorf("guard %+v, %v", st, err)
	}
	// It does not heed what ends other programs.
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if err := syscall.Kill(guard, sig); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(guard, 0); err != syscall.ESRCH {
		t.Errorf("the guard is still there: %v", err)
	}
}

// A program is killed while it starts its workers: what the first of them have started
// does not outlive it.
func TestGuardComesBeforeTheWorkers(t *testing.T) {
	lab := testproc.New(t)
	all := slices.Repeat([]string{"hang"}, 64)
	all[0] = "spawn:setsid,double:say:stray|hang/hang"
	cmd := program(t, lab, append([]string{"guarded", "no cgroups"}, all...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := lab.Line()
	for !strings.HasPrefix(line, "stray ") { // the guard's may come first
		line = lab.Line()
	}
	stray, _ := strconv.Atoi(strings.TrimPrefix(line, "stray "))
	await := ends(t, stray)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	await()
	for late := time.Now().Add(testproc.Patience); len(lab.Left()) > 0 && time.Now().Before(late); _, _ = unix.Poll(nil, 1) {
	}
}

// Without its guard a Supervisor continues.
func TestGuardIsKilled(t *testing.T) {
	for _, noCgroup := range []bool{false, true} {
		lab := testproc.New(t)
		s := supervisor(t, process.SupervisorConfig{Guard: true, NoCgroup: noCgroup})
		g := start(t, s, workers(lab, do("say:up", "gate")))
		lab.PID("up")
		guard := s.GuardPID() // soon another one
		if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, guard)
		lab.OpenGate()
		if r := wait(t, g); r.IsFailed() {
			t.Errorf("failed: %+v", r.Failures)
		}
		if r := wait(t, start(t, s, workers(lab, do("exit:0"), do("exit:0")))); r.IsFailed() {
			t.Errorf("failed: %+v", r.Failures)
		}
	}
}

// Where no guard can be started at first, one is as soon as that is possible.
func TestGuardComesLater(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	said := &journal{}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	s := supervisor(t, process.SupervisorConfig{Guard: true, NoCgroup: true, Logger: said.logger()})
	said.await(t, "no guard: ")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(testproc.Patience); s.GuardPID() == 0; _, _ = unix.Poll(nil, 1) {
		if time.Now().After(late) {
			t.Fatal("there is no guard")
		}
	}
}

// The guard need not know workers of which nothing is left, however many there were.
func TestGuardForgets(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{Guard: true})
	tagged := func(name string, script ...string) process.Config {
		cfg := workers(lab, script)
		cfg.Envs[0]["TORCHELASTIC_ERROR_FILE"] = name
		return cfg
	}
	for i := range 3 {
		wait(t, start(t, s, tagged(fmt.Sprint("gone", i), "exit:0")))
	}
	g := start(t, s, tagged("first", "gate"))
	start(t, s, tagged("second", "gate"))
	if d := cmp.Diff([]string{"TORCHELASTIC_ERROR_FILE=first", "TORCHELASTIC_ERROR_FILE=second"}, s.GuardTags()); d != "" {
		t.Error(d)
	}
	lab.OpenGate()
	wait(t, g)
}

// A program whose main does not look what it was started as is never started again
// as itself: it has no guard, and no workers that are functions. Where that has
// happened all the same, it starts nothing.
func TestUnpreparedMain(t *testing.T) {
	for _, tt := range []struct {
		name, word string
		env        []string
		want       []string // of what the program says
	}{
		{name: "started by hand", want: []string{
			"main has not called process.GuardMain; call it first in main",
			"main has not called process.FuncMain, so each worker would run main from its beginning",
			"guard 0\n", "codes map[0:0]\n",
		}},
		{name: "as a guard", word: "muster-guard", env: []string{"muster-guard=1"}, want: []string{"this process was started as a guard, and must not start workers"}},
		{name: "as a function", env: []string{"MUSTER_FUNC=3:echo"}, want: []string{`this process was started to run the function "echo", and must not start workers`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			cmd := program(t, lab, unpreparedWord, "exit:0")
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.Env = append(cmd.Env, tt.env...)
			if tt.word != "" {
				cmd.Args[0] = tt.word
			}
			err := cmd.Run()
			if refused := tt.env != nil; (err != nil) != refused {
				t.Errorf("the program ends with %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the program does not say %q:\n%s", want, out.String())
				}
			}
		})
	}
}

func TestReadGuarded(t *testing.T) {
	type guarded struct {
		Cgroup  string
		Tags    []string
		Workers map[int]uint64
		Files   []string
	}
	long := strings.Repeat("x", 300<<10)
	for _, tt := range []struct {
		name, text string
		want       guarded
	}{
		{"nothing", "", guarded{}},
		{"everything", "c/nowhere/muster-1\ntA=b c\ntMUSTER_WORKER=1.2.3\nw12 3400\nw13 99\nf/nowhere/a b\nf/nowhere/\n",
			guarded{"/nowhere/muster-1", []string{"A=b c", "MUSTER_WORKER=1.2.3"}, map[int]uint64{12: 3400, 13: 99}, []string{"/nowhere/a b", "/nowhere"}}},
		{"gone again", "w12 1\nw13 2\nx12\nx14\n", guarded{Workers: map[int]uint64{13: 2}}},
		{"the number is another's", "w12 1\nx12\nw12 5\n", guarded{Workers: map[int]uint64{12: 5}}},
		{"twice", "tA=b\ntA=b\nc/a/b\nc/a/c\n", guarded{Cgroup: "/a/c", Tags: []string{"A=b"}}},
		{"nothing is left", "c/a\ntA=b\nw12 1\nf/b\nn\ntA=c\n", guarded{Cgroup: "/a", Tags: []string{"A=c"}, Files: []string{"/b"}}},
		{"nonsense", "\nz\nw\nw 1\nw12\nw12 x\nwx 1\nw12 -1\nx\nxx\nt\ntA\nc\ncrelative\nf\nfrelative\n", guarded{}},
		{"not every process, and not init", "w0 1\nw1 1\nw-1 1\nw-12 1\n", guarded{}},
		{"cut short", "w12 34\nw13 3", guarded{Workers: map[int]uint64{12: 34}}},
		{"too long", "w12 1\ntA=" + long + "\nw13 2\n", guarded{Workers: map[int]uint64{12: 1, 13: 2}}},
		{"too long at the end", "w12 1\ntA=" + long, guarded{Workers: map[int]uint64{12: 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := process.ReadGuarded(strings.NewReader(tt.text))
			got := guarded{w.Cgroup(), w.Tags(), w.Workers(), w.Files()}
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzReadGuarded(f *testing.F) {
	f.Add("c/nowhere/muster-1\ntA=b c\nw12 3400\nx12\nw13 99\n")
	f.Add("w-1 1\nw0 18446744073709551616\nxx\n\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		w := process.ReadGuarded(strings.NewReader(text))
		for pid := range w.Workers() {
			if pid <= 1 {
				t.Errorf("would end the session of process %d", pid)
			}
		}
		for _, tag := range w.Tags() {
			if !strings.Contains(tag, "=") {
				t.Errorf("tag %q", tag)
			}
		}
		if w.Cgroup() != "" && w.Cgroup()[0] != '/' {
			t.Errorf("cgroup %q", w.Cgroup())
		}
	})
}

// A guard ends the session of a worker, but not of a process that has its number by
// now.
func TestGuardedOfRecycledNumbers(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{NoCgroup: true})
	g := start(t, s, workers(lab, do("spawn::say:up|hang", "say:up", "hang")))
	pids := lab.PIDs("up", 2)
	st, err := procfs.Read(g.PIDs()[0])
	if err != nil {
		t.Fatal(err)
	}
	other := process.ReadGuarded(strings.NewReader(fmt.Sprintf("w%d %d\n", st.PID, st.Start+1)))
	other.End(time.Now().Add(testproc.Patience))
	if n := len(lab.Left()); n != 2 {
		t.Fatalf("%d processes are left, want both", n)
	}
	mine := process.ReadGuarded(strings.NewReader(fmt.Sprintf("w%d %d\n", st.PID, st.Start)))
	mine.End(time.Now().Add(testproc.Patience))
	awaitEnd(t, pids...)
	if d := cmp.Diff(map[int]int{0: -9}, codes(wait(t, g))); d != "" {
		t.Error(d)
	}
}

// Where a guard dies, another one learns what still holds, and does what it would
// have done.
func TestGuardIsReplaced(t *testing.T) {
	lab := testproc.New(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := program(t, lab, "guarded", "none", "spawn:setsid,double:say:stray|hang/say:up/hang")
	p.Env = append(p.Env, leftFiles+"="+dir)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var guard, stray int
	for range 4 { // guard, cgroup, stray, up
		line := lab.Line()
		if pid, ok := pidAfter("guard ", line); ok {
			guard = pid
		}
		if pid, ok := pidAfter("stray ", line); ok {
			stray = pid
		}
	}
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next := 0
	for late := time.Now().Add(testproc.Patience); next == 0 && time.Now().Before(late); _, _ = unix.Poll(nil, 1) {
		all, err := procfs.All()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", s.PID)); s.Parent == p.Process.Pid && s.PID != guard && string(name) == "muster-guard\n" {
				next = s.PID
			}
		}
	}
	if next == 0 {
		t.Fatal("there is no other guard")
	}
	gone := ends(t, next, stray)
	_ = p.Process.Kill()
	_ = p.Wait()
	gone()
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// A program is killed together with its guard: the next guard on the host ends what its
// workers have left, and nothing that somebody else has put beside them.
func TestGuardEndsWhatOthersLeft(t *testing.T) {
	if !supervisor(t, process.SupervisorConfig{}).HasCgroup() {
		t.Skip("needs the right to make a cgroup")
	}
	lab := testproc.New(t)
	start := func(worker string) (pids map[string]int, kill func(pids ...int)) {
		cmd := program(t, lab, "guarded", "cgroups", worker)
		cmd.Env = append(cmd.Env, "TORCHELASTIC_RUN_ID=job1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pids = map[string]int{}
		for range 2 + strings.Count(worker, "say:") {
			word, rest, _ := strings.Cut(lab.Line(), " ")
			pids[word], _ = strconv.Atoi(rest)
			if word == "cgroup" {
				dir, err := cgroup.Open(rest)
				if err != nil {
					t.Fatal(err)
				}
				pids[word] = dir.FD()
				t.Cleanup(func() { _ = dir.Remove() })
			}
		}
		return pids, func(pids ...int) {
			_ = cmd.Process.Signal(syscall.SIGSTOP) // it would replace its guard
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	first, kill := start("spawn:setsid,double:say:stray|hang/say:up/hang")
	other := exec.Command("sleep", "1000")
	other.Env = []string{}
	other.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: first["cgroup"]}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	gone := ends(t, first["stray"])
	kill(first["guard"])
	second, kill := start("say:up/hang")
	gone()
	gone = ends(t, second["up"], second["guard"])
	kill()
	gone()
	if err := other.Process.Kill(); err != nil {
		t.Errorf("somebody else's process was ended: %v", err)
	}
	if err := other.Wait(); err == nil || strings.Contains(err.Error(), "exit status") {
		t.Error(err)
	}
}
