package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// stuck is what an Exit says of a worker in uninterruptible sleep.
var stuck = regexp.MustCompile(`^for \d+\.\ds, state D(, wait channel \w+)?(, stack \w+( < \w+)*)?$`)

// Source: the D-state check of _monitor_workers in agent/server/local_elastic_agent.py.
func TestUninterruptible(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script []string
		grace  time.Duration
		code   int
	}{
		{"wakes up at SIGTERM", do("vfork"), long, -15},
		{"needs SIGKILL", do("ignore:15", "vfork"), time.Millisecond, -9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			cfg := workers(lab, do("hang"), tt.script)
			cfg.UninterruptibleTimeout, cfg.Grace = 500*time.Millisecond, tt.grace // the other one may wait for a disk
			begin := time.Now()
			r := wait(t, start(t, s, cfg))
			if !r.Uninterruptible {
				t.Error("the result does not say so")
			}
			if got := r.Exits[1].Code; got != tt.code {
				t.Errorf("code %d, want %d", got, tt.code)
			}
			// The stuck one is what failed, not what was stopped.
			if d := cmp.Diff(map[int]int{0: 15}, stopped(r)); d != "" {
				t.Error(d)
			}
			x := r.Exits[1]
			if !stuck.MatchString(x.Uninterruptible) || x.Abandoned != "" || r.Exits[0].Uninterruptible != "" {
				t.Errorf("uninterruptible: %q, abandoned %q, the other %q", x.Uninterruptible, x.Abandoned, r.Exits[0].Uninterruptible)
			}
			if took := x.Time.Sub(begin); took < cfg.UninterruptibleTimeout {
				t.Errorf("ended after %v", took)
			}
			if _, failed := r.Failures[1]; !failed {
				t.Errorf("failures %+v", r.Failures)
			}
		})
	}
}

// A freezer makes processes stick in the kernel: frozen by cgroups of version 1
// they are in state D and do not die of SIGKILL until they are thawed.
type freezer struct {
	t   *testing.T
	dir string
}

func newFreezer(t *testing.T) *freezer {
	t.Helper()
	f := &freezer{t, makeV1(t, "freezer")}
	t.Cleanup(f.thaw)
	return f
}

func (f *freezer) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0); err != nil {
		f.t.Fatal(err)
	}
}

func (f *freezer) freeze(pids ...int) {
	f.t.Helper()
	for _, pid := range pids {
		f.write("cgroup.procs", strconv.Itoa(pid))
	}
	f.write("freezer.state", "FROZEN")
	for late := time.Now().Add(testproc.Patience); ; {
		state, err := os.ReadFile(filepath.Join(f.dir, "freezer.state"))
		if err != nil || time.Now().After(late) {
			f.t.Fatalf("freezer %q, %v", state, err)
		}
		if string(state) == "FROZEN\n" {
			return
		}
		_, _ = unix.Poll(nil, 1)
	}
}

func (f *freezer) thaw() {
	f.t.Helper()
	f.write("freezer.state", "THAWED")
}

// makeV1 makes a cgroup of version 1 below this program's, or skips the test.
func makeV1(t *testing.T, controller string) string {
	t.Helper()
	dir, err := os.MkdirTemp(ownV1(t, controller), "muster-test-")
	if err != nil {
		t.Skipf("needs the right to make a %s cgroup: %v", controller, err)
	}
	t.Cleanup(func() {
		// Processes leave with their last thread, a moment after they ended.
		for range 1000 {
			if err := os.Remove(dir); err == nil {
				return
			}
			_, _ = unix.Poll(nil, 1)
		}
		t.Errorf("%s is still there", dir)
	})
	return dir
}

// ownV1 returns the directory of this program's cgroup in a hierarchy of version 1,
// or skips the test.
func ownV1(t *testing.T, controller string) string {
	t.Helper()
	point := ""
	for line := range lines(t, "/proc/self/mountinfo") {
		head, tail, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(head), strings.Fields(tail)
		if len(fields) > 4 && len(kind) > 2 && kind[0] == "cgroup" && fields[3] == "/" &&
			strings.Contains(","+kind[2]+",", ","+controller+",") {
			point = fields[4]
		}
	}
	for line := range lines(t, "/proc/self/cgroup") {
		parts := strings.SplitN(line, ":", 3)
		if point != "" && len(parts) == 3 && strings.Contains(","+parts[1]+",", ","+controller+",") {
			return filepath.Join(point, parts[2])
		}
	}
	t.Skipf("needs the %s controller of cgroups version 1", controller)
	return ""
}

func lines(t *testing.T, path string) func(func(string) bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("needs %s: %v", path, err)
	}
	return strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n")
}

// A worker that SIGKILL does not end is given up.
// Source: process.md §7, close.
func TestAbandon(t *testing.T) {
	for _, noFDs := range []bool{false, true} {
		t.Run(fmt.Sprintf("pidfds %v", !noFDs), func(t *testing.T) {
			t.Parallel()
			lab := testproc.New(t)
			fridge := newFreezer(t)
			var seen journal
			s := supervisor(t, process.SupervisorConfig{Logger: seen.logger()})
			if noFDs {
				s.WithoutPidfds()
			}
			g := start(t, s, workers(lab, do("say:up", "hang"), do("say:up", "hang")))
			lab.PIDs("up", 2)
			pid := g.PIDs()[1]
			fridge.freeze(pid)
			done := stopAll(func() { g.Close(syscall.SIGTERM, long) })
			awaitEnd(t, g.PIDs()[0])
			// The grace of the stop that counts is also how long SIGKILL has.
			g.Close(syscall.SIGTERM, time.Millisecond)
			<-done
			r := wait(t, g)
			if !r.Uninterruptible {
				t.Error("the result does not say so")
			}
			if d := cmp.Diff(map[int]int{0: -15, 1: -9}, codes(r)); d != "" {
				t.Error(d)
			}
			x := r.Exits[1]
			if !strings.HasPrefix(x.Abandoned, "state D") || x.Uninterruptible != "" || x.StoppedBy != syscall.SIGTERM {
				t.Errorf("abandoned %q, uninterruptible %q, stopped by %v", x.Abandoned, x.Uninterruptible, x.StoppedBy)
			}
			if r.Failures[1].Abandoned == "" {
				t.Errorf("failures %+v", r.Failures)
			}
			for _, want := range []string{"level=ERROR", "worker did not end after SIGKILL and is left behind", "local_rank=1", "wait_channel="} {
				if !strings.Contains(seen.String(), want) {
					t.Errorf("the log does not say %q:\n%s", want, seen.String())
				}
			}
			// The Supervisor continues.
			if r := wait(t, start(t, s, workers(lab, do("exit:0")))); r.IsFailed() {
				t.Errorf("afterwards: %+v", r.Failures)
			}
			fridge.thaw()
			awaitEnd(t, pid)
		})
	}
}

// What a worker left behind and SIGKILL does not end does not hold up the group
// for ever either.
func TestLeftoverThatStays(t *testing.T) {
	t.Parallel()
	lab := testproc.New(t)
	fridge := newFreezer(t)
	var seen journal
	s := supervisor(t, process.SupervisorConfig{Logger: seen.logger()})
	cfg := workers(lab, do("spawn:setsid:say:stray|hang", "gate", "exit:0"))
	cfg.LeftoverGrace = time.Millisecond
	g := start(t, s, cfg)
	stray := lab.PID("stray")
	fridge.freeze(stray)
	lab.OpenGate()
	if r := wait(t, g); r.IsFailed() {
		t.Errorf("failed: %+v", r.Failures)
	}
	want := fmt.Sprintf(`level=ERROR msg="processes that a worker left behind did not end after SIGKILL" role=default local_rank=0 pid=%d pids=[%d]`, g.PIDs()[0], stray)
	if !strings.Contains(seen.String(), want) {
		t.Errorf("the log does not say\n%s\nbut\n%s", want, seen.String())
	}
	fridge.thaw()
	awaitEnd(t, stray)
}

// One that is stuck for less than the limit only causes a warning.
func TestStuckForAWhile(t *testing.T) {
	t.Parallel()
	lab := testproc.New(t)
	fridge := newFreezer(t)
	var seen journal
	s := supervisor(t, process.SupervisorConfig{Logger: seen.logger()})
	cfg := workers(lab, do("say:up", "gate", "exit:0"))
	cfg.UninterruptibleTimeout = long
	g := start(t, s, cfg)
	lab.PID("up")
	fridge.freeze(g.PIDs()[0])
	seen.await(t, "worker entered uninterruptible sleep (D-state)")
	fridge.thaw()
	lab.OpenGate()
	if r := wait(t, g); r.IsFailed() || r.Uninterruptible {
		t.Errorf("got %+v", r)
	}
}
