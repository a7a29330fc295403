package process_test

import (
	"errors"
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

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// An orphan whose first thread has ended, and whose others continue, is ended with its worker.
func TestOrphanWithoutFirstThread(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	const orphan = `
import ctypes, os, platform, sys, threading, time
def rest():
    me = str(os.getpid())
    while open("/proc/self/task/%s/stat" % me).read().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.001)
    with open(sys.argv[1] + ".part", "w") as f:
        f.write(me)
    os.rename(f.name, sys.argv[1])
    time.sleep(600)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
`
	for _, none := range []bool{true, false} {
		lab := testproc.New(t)
		s := supervisor(t, process.SupervisorConfig{NoCgroup: none})
		said := filepath.Join(t.TempDir(), "pid")
		cfg := workers(lab, nil)
		cfg.Entrypoint, cfg.LeftoverGrace = "/bin/sh", time.Second
		cfg.Args[0] = []string{"-c", `setsid "$0" -c "$1" "$2" & until [ -s "$2" ]; do sleep 0.01; done`, python, orphan, said}
		if r := wait(t, start(t, s, cfg)); r.IsFailed() {
			t.Fatalf("failed: %+v", r.Failures)
		}
		text, err := os.ReadFile(said)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("without cgroups: %v: the orphan %d is still there: %v", none, pid, err)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A leftover that is stuck in the kernel when its grace is over cannot be asked whose it is, and is
// killed all the same.
func TestLeftoverStuckLater(t *testing.T) {
	lab := testproc.New(t)
	cfg := workers(lab, do("spawn:setsid,double:tell:15|say:stray|gate|vfork", "trap:USR1:0", "say:up", "hang"))
	cfg.LeftoverGrace = 2 * time.Second
	g := start(t, supervisor(t, process.SupervisorConfig{NoCgroup: true}), cfg)
	stray := 0
	for range 2 {
		if pid, ok := pidAfter("stray ", lab.Line()); ok {
			stray = pid
		}
	}
	if err := syscall.Kill(g.PIDs()[0], syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	lab.Line() // the leftover has got SIGTERM
	lab.OpenGate()
	if r := wait(t, g); r.IsFailed() {
		t.Errorf("failed: %+v", r.Failures)
	}
	if p, err := procfs.Read(stray); err == nil && p.Alive() {
		t.Errorf("what the worker left is still there, in state %c", p.State)
	}
	lab.CheckNothingLeft()
}

// Orphans that end are reaped: at once if the Supervisor may take every orphan for
// its own, otherwise with their worker.
func TestOrphansAreReaped(t *testing.T) {
	for _, tt := range []struct {
		name, orphan string
		reap         bool
	}{
		{"all", "spawn:setsid,double:say:orphan", true},
		{"all, in the worker's session", "spawn:double:say:orphan", true},
		{"only the worker's", "spawn:double:say:orphan", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{WholeProgram: tt.reap})
			g := start(t, s, workers(lab, do(tt.orphan, tt.orphan, tt.orphan, "say:up", "gate")))
			var orphans []int
			for range 4 {
				line := lab.Line()
				if pid, ok := pidAfter("orphan ", line); ok {
					orphans = append(orphans, pid)
				}
			}
			awaitEnd(t, orphans...)
			if tt.reap {
				awaitReaped(t, orphans...)
			}
			lab.OpenGate()
			if r := wait(t, g); r.IsFailed() {
				t.Errorf("failed: %+v", r.Failures)
			}
			for _, pid := range orphans {
				if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
					t.Errorf("orphan %d is a zombie: %v", pid, err)
				}
			}
			if len(orphans) != 3 {
				t.Errorf("orphans %v", orphans)
			}
		})
	}
}

// What this program has started for itself is nobody's orphan, though it be a child
// like one.
func TestOwnChildrenStay(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{WholeProgram: true, NoCgroup: true})
	g := start(t, s, workers(lab, do("spawn:setsid,double,bare:say:stray|hang", "gate")))
	stray, _ := pidAfter("stray ", lab.Line())
	children.Add(stray)
	lab.OpenGate()
	if r := wait(t, g); r.IsFailed() {
		t.Errorf("failed: %+v", r.Failures)
	}
	if err := syscall.Kill(stray, 0); err != nil {
		t.Errorf("a child of this program's own has ended with the last worker: %v", err)
	}
	children.Forget(stray)
	gone := ends(t, stray)
	if err := syscall.Kill(stray, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	gone()
}

// A stray that nothing shows to be a worker's ends with the last worker.
func TestUnknownOrphansEndWithTheLastWorker(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{WholeProgram: true, NoCgroup: true, Guard: true})
	cfg := workers(lab, do("spawn:setsid,double,bare:trap:15:0|say:stray|hang", "gate"), do("say:up", "trap:15:0", "hang"))
	g := start(t, s, cfg)
	stray := 0
	for range 2 {
		if pid, ok := pidAfter("stray ", lab.Line()); ok {
			stray = pid
		}
	}
	lab.OpenGate()
	awaitReaped(t, g.PIDs()[0])
	if err := syscall.Kill(stray, 0); err != nil {
		t.Errorf("the stray has ended with a worker that may not be its own: %v", err)
	}
	await := ends(t, stray)
	g.Close(syscall.SIGTERM, long)
	await()
	if d := cmp.Diff(map[int]int{0: 0, 1: 0}, codes(wait(t, g))); d != "" {
		t.Error(d)
	}
	lab.CheckNothingLeft()
}

// What the program has from before it ran workers lives on, with all that comes of it: the tee of
// `exec muster run … > >(tee log)`, a helper that an entry point has started. What a worker leaves
// behind is ended all the same.
func TestInheritedProcessesLiveOn(t *testing.T) {
	stray := "spawn:setsid,double:say:stray|hang"
	helper := testproc.Args("say:helper", "gate", "spawn:double:say:helper's|hang", "spawn:setsid,double:say:helper's|hang", "hang")
	t.Run("a program", func(t *testing.T) {
		lab := testproc.New(t)
		cmd := program(t, lab, "whole", stray+"/spawn:double:say:stray|hang/trap:15:0/say:up/hang")
		cmd.Args = slices.Concat([]string{"sh", "-c", `"$0" "$1" "$2" "$3" "$4" "$5" "$6" & shift 6; exec "$0" "$@"`, cmd.Path}, helper, cmd.Args[1:])
		livesOn(t, lab, cmd, nil)
	})
	t.Run("PID 1", func(t *testing.T) {
		lab := testproc.New(t)
		cmd := program(t, lab, "whole", stray+"/spawn:double:say:stray|hang/trap:15:0/say:up/hang")
		cmd.Args = slices.Concat([]string{"sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:])
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		livesOn(t, lab, cmd, append([]string{testproc.Program()}, helper...))
	})
}

// livesOn runs the program whole, with a visitor that comes into its pid namespace if there is one,
// whose worker leaves two strays, and whose helper three processes that are not the worker's.
func livesOn(t *testing.T, lab *testproc.Lab, cmd *exec.Cmd, visitor []string) {
	t.Helper()
	cmd.Path = "/bin/sh"
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Skip("needs namespaces:", err)
	}
	lines := []string{"open", "up", "stray", "stray"}
	if visitor == nil {
		lines = append(lines, "helper")
	}
	awaitLines(t, lab, lines...)
	if visitor != nil {
		// The visitor leaves, as it does after `kubectl exec … nohup helper &`.
		enter := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(cmd.Process.Pid), "-p", "-m", "setsid", "sh", "-c", `"$0" "$@" >/dev/null 2>&1 &`}, visitor...)...)
		enter.Env = lab.Env()
		if out, err := enter.CombinedOutput(); err != nil {
			t.Skipf("needs nsenter: %v\n%s", err, out)
		}
		awaitLines(t, lab, "helper")
	}
	lab.OpenGate()
	awaitLines(t, lab, "helper's", "helper's")
	for _, pid := range lab.Left() {
		line := procfs.Command(pid) + " "
		if strings.Contains(line, " say:up ") {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	awaitLines(t, lab, "over")
	var left []int
	for _, pid := range lab.Left() {
		line := procfs.Command(pid) + " "
		if strings.Contains(line, "testproc say:helper") {
			left = append(left, pid)
		} else if strings.Contains(line, "testproc say:stray") {
			t.Errorf("the worker has left process %d, %q", pid, line)
		}
	}
	if len(left) != 3 {
		t.Errorf("of the 3 processes that are not the worker's %d are left", len(left))
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		testproc.AwaitEnd(pid, testproc.Patience)
	}
}

// awaitLines awaits the first words of lines on the board, in any order.
func awaitLines(t *testing.T, lab *testproc.Lab, want ...string) {
	t.Helper()
	var got []string
	for range want {
		word, _, _ := strings.Cut(lab.Line(), " ")
		got = append(got, word)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("the board says %q, want %q", got, want)
	}
}

// A group whose last worker has ended does not take for an orphan what another group is
// just forking.
func TestForkBesideTheLastWorker(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{WholeProgram: true, NoCgroup: true})
	cfg := workers(lab, do("say:up", "gate"))
	cfg.LeftoverGrace = process.NoGrace
	last := start(t, s, cfg)
	lab.Line()
	cfg = workers(lab, do("hang"))
	cfg.Fork = func(img process.Image, adopt func(int) error) error {
		// As an orphan it is a child of the first thread, as what another thread forks is not.
		cmd := exec.Command("sh", append([]string{"-c", `exec 0<&- 2>&-; setsid "$@" >&- & echo $!`, "sh", img.Path}, img.Args[1:]...)...)
		cmd.Env = img.Env
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			return err
		}
		lab.OpenGate()
		awaitEnd(t, last.PIDs()[0])
		time.Sleep(50 * time.Millisecond) // for the other group to do what it must not
		if err = adopt(pid); err != nil {
			t.Errorf("the forked worker was taken for an orphan: %v", err)
		}
		return err
	}
	g := start(t, s, cfg)
	wait(t, last)
	g.Close(syscall.SIGTERM, long)
	if d := cmp.Diff(map[int]int{0: -int(syscall.SIGTERM)}, codes(wait(t, g))); d != "" {
		t.Error(d)
	}
	lab.CheckNothingLeft()
}

// A fork that fails when the worker may run already: it is killed before another takes its place.
func TestForkFailsLate(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{WholeProgram: true, NoCgroup: true})
	cfg := workers(lab, do("gate", "exit:0"))
	first := 0
	cfg.Fork = func(img process.Image, adopt func(int) error) error {
		cmd := exec.Command("sh", append([]string{"-c", `exec 0<&- 2>&-; setsid "$@" >&- & echo $!`, "sh", img.Path}, img.Args[1:]...)...)
		cmd.Env = img.Env
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		if first, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
			return err
		}
		return errors.Join(adopt(first), errors.New("no answer"))
	}
	g := start(t, s, cfg)
	awaitEnd(t, first)
	lab.OpenGate()
	if d := cmp.Diff(map[int]int{0: 0}, codes(wait(t, g))); d != "" || g.PIDs()[0] == first {
		t.Error(d, g.PIDs(), first)
	}
	lab.CheckNothingLeft()
}

// What a worker leaves behind ends also where only this worker got no cgroup.
func TestOrphansOfAWorkerWithoutCgroup(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	if !s.HasCgroup() {
		t.Skip("needs the right to make a cgroup")
	}
	if err := os.Mkdir(filepath.Join(s.CgroupPath(), "1.0"), 0o755); err != nil { // the first worker's
		t.Fatal(err)
	}
	if r := wait(t, start(t, s, workers(lab, do("spawn:setsid,double:say:stray|hang", "exit:0")))); r.IsFailed() || !s.HasCgroup() {
		t.Errorf("%+v, cgroups %v", r, s.HasCgroup())
	}
	lab.CheckNothingLeft()
}

// Children that the program starts itself are left alone, also when they have
// ended and nobody waited for them yet.
func TestOtherChildren(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	var others []*exec.Cmd
	for _, script := range [][]string{do("exit:7"), do("exit:7"), do("exit:7"), do("gate", "exit:7"), do("gate", "exit:7")} {
		cmd := exec.Command(testproc.Program(), testproc.Args(script...)...)
		cmd.Env = lab.Env()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	for _, cmd := range others[:3] {
		awaitEnd(t, cmd.Process.Pid)
	}
	for range 3 {
		wait(t, start(t, s, workers(lab, do("spawn:setsid,double:say:stray|hang", "exit:0"), do("exit:0"))))
	}
	lab.OpenGate()
	for i, cmd := range others {
		exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
		if !ok || exit.ExitCode() != 7 {
			t.Errorf("child %d: %v", i, exit)
		}
	}
}

// The program is a child subreaper as long as it has a Supervisor.
func TestSubreaper(t *testing.T) {
	before := process.IsSubreaper()
	one := supervisor(t, process.SupervisorConfig{})
	two := supervisor(t, process.SupervisorConfig{})
	if !process.IsSubreaper() {
		t.Error("not a subreaper")
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	if !process.IsSubreaper() {
		t.Error("no subreaper any more with a Supervisor left")
	}
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	if got := process.IsSubreaper(); got != before {
		t.Errorf("afterwards: %v, before: %v", got, before)
	}
}

// Where there is no grace, the first failure kills what its worker left behind, at once.
func TestNoGraceForLeftovers(t *testing.T) {
	for _, noCgroup := range []bool{false, true} {
		lab := testproc.New(t)
		s := supervisor(t, process.SupervisorConfig{NoCgroup: noCgroup})
		cfg := workers(lab, do("spawn:double:say:stray|hang", "gate", "exit:3"))
		cfg.Grace = process.NoGrace
		g := start(t, s, cfg)
		gone := ends(t, lab.PID("stray"))
		lab.OpenGate()
		if r := wait(t, g); codes(r)[0] != 3 {
			t.Errorf("codes %v", codes(r))
		}
		gone()
	}
}
