package process_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// A mode is a way in which the kernel helps, or does not.
type mode struct {
	name            string
	noCgroup, noFDs bool
	reap            bool
}

var modes = []mode{
	{name: "cgroups"},
	{name: "cgroups and the launcher", reap: true},
	{name: "no cgroups", noCgroup: true},
	{name: "no cgroups and the launcher", noCgroup: true, reap: true},
	{name: "no cgroups, no pidfds", noCgroup: true, noFDs: true},
}

// inModes runs a test in every mode.
func inModes(t *testing.T, f func(t *testing.T, s *process.Supervisor)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			s := supervisor(t, process.SupervisorConfig{NoCgroup: m.noCgroup, WholeProgram: m.reap})
			if m.noFDs {
				s.WithoutPidfds()
			}
			if !m.noCgroup && !s.HasCgroup() {
				t.Skip("needs the right to make a cgroup")
			}
			f(t, s)
		})
	}
}

// strays are the ways in which a grandchild gets away. Each ignores SIGTERM.
var strays = []string{
	"spawn::ignore:15|say:stray|hang",
	"spawn:setsid:ignore:15|say:stray|hang",
	"spawn:double:ignore:15|say:stray|hang",
	"spawn:setsid,double:ignore:15|say:stray|hang",
	"spawn:setsid:ignore:15|spawn:setsid,double:ignore:15;say:stray;hang",
}

func TestLeftoversOfAWorkerThatEnds(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		for _, code := range []int{0, 5} {
			t.Run(fmt.Sprint(code), func(t *testing.T) {
				lab := testproc.New(t)
				cfg := workers(lab, append(strays[:4:4], "gate", fmt.Sprintf("exit:%d", code)))
				cfg.LeftoverGrace = time.Millisecond
				g := start(t, s, cfg)
				lab.PIDs("stray", 4)
				lab.OpenGate()
				r := wait(t, g)
				lab.CheckNothingLeft()
				if d := cmp.Diff(map[int]int{0: code}, codes(r)); d != "" {
					t.Error(d)
				}
			})
		}
	})
}

// What a worker leaves behind has a moment to end by itself before it gets a signal: a filter of the
// worker's output has to read the end of it.
func TestMomentBeforeSIGTERM(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		g := start(t, s, workers(lab, do("spawn::tell:15|say:filter|hang", "gate", "exit:1")))
		lab.PID("filter")
		began := time.Now()
		lab.OpenGate()
		if got := lab.Line(); got != "got 15" || time.Since(began) < 200*time.Millisecond {
			t.Errorf("%q after %v, want SIGTERM after 0.2 s", got, time.Since(began))
		}
		g.Kill()
	})
}

// What is left of a worker that was told to stop has the time of that stop, and gets no second signal:
// the child of `bash train.sh` without exec, a launcher in a worker and the workers of that. What the
// stop has not reached gets SIGTERM.
func TestLeftoversOfAStoppedWorker(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		inModes(t, func(t *testing.T, s *process.Supervisor) {
			lab := testproc.New(t)
			cfg := workers(lab, do("spawn::tell:2|tell:15|spawn:setsid:gate|say:told|gate",
				"spawn:setsid:trap:15:0|say:apart|hang", "spawn::ignore:2|trap:15:0|say:deaf|hang", "say:up", "hang"))
			cfg.LeftoverGrace = time.Millisecond
			g := start(t, s, cfg)
			leader, pids := g.PIDs()[0], map[string]int{}
			for range 4 {
				word, pid, _ := strings.Cut(lab.Line(), " ")
				pids[word], _ = strconv.Atoi(pid)
			}
			closed := stopAll(func() { g.Close(sig, long) })
			if got, want := lab.Line(), fmt.Sprintf("got %d", sig); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			awaitEnd(t, leader, pids["apart"], pids["deaf"])
			if n := len(lab.Left()); n != 2 {
				t.Errorf("%d processes left, want the one that was told and its child", n)
			}
			lab.OpenGate()
			<-closed
			if d := cmp.Diff(map[int]int{0: -int(sig)}, codes(wait(t, g))); d != "" {
				t.Error(d)
			}
			lab.NoMore()
		})
	}
}

// A helper has some time after its worker's success, which the log tells once. A stop ends that time.
func TestHelperOfASucceededWorker(t *testing.T) {
	var seen journal
	s := supervisor(t, process.SupervisorConfig{NoCgroup: true, Logger: seen.logger()})
	for _, stopped := range []bool{false, true} {
		lab := testproc.New(t)
		cfg := workers(lab, do("spawn:setsid:tell:15|say:upload|gate|report:uploaded", "exit:0"), do("say:peer", "gate"))
		cfg.HelperTimeout, cfg.LeftoverGrace = long, long
		if !stopped {
			delete(cfg.Args, 1)
			delete(cfg.Envs, 1)
		}
		g := start(t, s, cfg)
		seen.await(t, "waiting for what it left running")
		if stopped {
			lab.Lines(2)
			done := stopAll(func() { g.Close(syscall.SIGTERM, long) })
			if got := lab.Line(); got != "got 15" {
				t.Errorf("%q, want SIGTERM for the helper", got)
			}
			lab.OpenGate()
			<-done
		} else {
			lab.PID("upload")
			lab.OpenGate()
		}
		if got := lab.Line(); got != "uploaded" {
			t.Errorf("%q, want that the helper comes to its end", got)
		}
		wait(t, g)
		text := seen.String()
		if strings.Count(text, "waiting for what it left running") != 1 || !strings.Contains(text, "say:upload") || !strings.Contains(text, "until=") {
			t.Errorf("the log should say once that the group waits, for what, and until when:\n%s", text)
		}
		seen.clear()
	}
}

// The leftovers of one worker end, those of another live on.
func TestLeftoversOfOneWorkerOnly(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		cfg := workers(lab,
			do("spawn:setsid,double:trap:15:0|say:first|hang", "gate"),
			do("spawn:setsid,double:say:second|hang", "trap:15:0", "say:up", "hang"))
		cfg.LeftoverGrace = long
		g := start(t, s, cfg)
		lab.Lines(3)
		lab.OpenGate()
		awaitReaped(t, g.PIDs()[0]) // which it is when nothing is left of it
		if n := len(lab.Left()); n != 2 {
			t.Errorf("%d processes left, want the other worker and its child", n)
		}
		g.Close(syscall.SIGTERM, long)
		lab.CheckNothingLeft()
		if d := cmp.Diff(map[int]int{0: 0, 1: 0}, codes(wait(t, g))); d != "" {
			t.Error(d)
		}
	})
}

func TestClose(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		stubborn := append(strays[:4:4], "ignore:15", "say:up", "hang")
		cfg := workers(lab, stubborn, do("trap:15:4", "say:up", "hang"), do("say:up", "hang"))
		g := start(t, s, cfg)
		lab.Lines(3 + 4)
		done := stopAll(func() { g.Close(syscall.SIGTERM, long) })
		awaitEnd(t, g.PIDs()[1], g.PIDs()[2])
		g.Close(syscall.SIGTERM, 20*time.Millisecond)
		<-done
		lab.CheckNothingLeft()
		r := wait(t, g)
		if d := cmp.Diff(map[int]int{0: -9, 1: 4, 2: -15}, codes(r)); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[int]int{0: 15, 1: 15, 2: 15}, stopped(r)); d != "" {
			t.Error(d)
		}
		g.Close(syscall.SIGTERM, 0)
	})
}

// Kill cuts an endless grace, of workers and of what they left behind.
func TestKill(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		cfg := workers(lab, do("ignore:2", "say:up", "hang"), do(strays[3], "trap:2:0", "say:up", "hang"))
		cfg.LeftoverGrace, cfg.Grace = long, long
		g := start(t, s, cfg)
		lab.Lines(3)
		closed := stopAll(func() { g.Close(syscall.SIGINT, long) })
		awaitEnd(t, g.PIDs()[1])
		g.Kill()
		<-closed
		lab.CheckNothingLeft()
		if d := cmp.Diff(map[int]int{0: -9, 1: 0}, codes(wait(t, g))); d != "" {
			t.Error(d)
		}
	})
}

// stopAll makes each of some calls in a goroutine and returns what ends with the
// last of them.
func stopAll(calls ...func()) <-chan struct{} {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(call)
	}
	go func() { wg.Wait(); close(done) }()
	return done
}

// The earlier deadline counts, whichever stop it is of, and workers get the first
// signal only.
func TestSecondStop(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first time.Duration
		then  func(*process.Group)
	}{
		{"earlier", long, func(g *process.Group) { g.Close(syscall.SIGINT, time.Millisecond) }},
		{"later", 3 * time.Second, func(g *process.Group) { g.Close(syscall.SIGINT, long) }}, // time enough to say "got 15"
		{"at once", long, func(g *process.Group) { g.Close(syscall.SIGINT, 0) }},
		{"SIGKILL", long, func(g *process.Group) { g.Close(syscall.SIGKILL, long) }},
		{"Kill", long, (*process.Group).Kill},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			g := start(t, s, workers(lab, do("tell:2", "tell:15", "say:up", "hang")))
			lab.PID("up")
			done := stopAll(func() { g.Close(syscall.SIGTERM, tt.first) })
			if got := lab.Line(); got != "got 15" {
				t.Errorf("got %q", got)
			}
			tt.then(g)
			<-done
			r := wait(t, g)
			if d := cmp.Diff(map[int]int{0: -9}, codes(r)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(map[int]int{0: 15}, stopped(r)); d != "" {
				t.Error(d)
			}
			lab.NoMore()
		})
	}
}

// A stop by SIGKILL, or without grace, has no first signal.
func TestStopAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sig   syscall.Signal
		grace time.Duration
	}{
		{"without grace", syscall.SIGTERM, 0},
		{"negative grace", 0, -time.Second},
		{"SIGKILL", syscall.SIGKILL, long},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			g := start(t, s, workers(lab, do("tell:15", "say:up", "hang")))
			lab.PID("up")
			g.Close(tt.sig, tt.grace)
			if x := wait(t, g).Exits[0]; x.Code != -9 || x.StoppedBy != syscall.SIGKILL {
				t.Errorf("code %d, stopped by %v", x.Code, x.StoppedBy)
			}
			lab.NoMore()
		})
	}
}

// Whichever signal the caller chose goes to the whole process group; zero means
// SIGTERM.
// The peers of a failed worker have the default grace where nothing else is said.
func TestGraceOfPeers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace time.Duration
		code  int
	}{
		{"default", 0, 3},
		{"none", process.NoGrace, -9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			cfg := workers(lab, do("gate", "exit:1"), do("trap:15:3", "say:up", "hang"))
			cfg.Grace = tt.grace
			g := start(t, s, cfg)
			lab.PID("up")
			lab.OpenGate()
			if d := cmp.Diff(map[int]int{0: 1, 1: tt.code}, codes(wait(t, g))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestStopSignal(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	for _, tt := range []struct{ send, want syscall.Signal }{{0, syscall.SIGTERM}, {syscall.SIGUSR1, syscall.SIGUSR1}} {
		trap := fmt.Sprintf("trap:%d:9", tt.want)
		g := start(t, s, workers(lab, do("spawn::"+trap+"|say:up|hang", trap, "say:up", "hang")))
		lab.PIDs("up", 2)
		g.Close(tt.send, long)
		if x := wait(t, g).Exits[0]; x.Code != 9 || x.StoppedBy != tt.want {
			t.Errorf("code %d, stopped by %v, want 9 and %v", x.Code, x.StoppedBy, tt.want)
		}
	}
}

// Many callers at once, during a failure's own stop too.
func TestStopConcurrently(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("say:up", "hang"), do("say:up", "hang"), do("say:up", "gate", "exit:1")))
	lab.PIDs("up", 3)
	var calls []func()
	for i := range 20 {
		calls = append(calls,
			func() { g.Close(syscall.SIGTERM, time.Duration(i)*time.Millisecond) },
			func() {
				if _, err := g.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			},
			g.Kill)
	}
	lab.OpenGate()
	<-stopAll(calls...)
	if r := wait(t, g); len(r.Exits) != 3 || len(r.Failures) < 2 {
		t.Errorf("got %+v", r)
	}
}

// A group that has ended is left alone.
func TestStopAfterTheEnd(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("exit:0"), do("exit:0")))
	before := wait(t, g)
	g.Close(syscall.SIGTERM, long)
	g.Kill()
	if after := wait(t, g); after != before || len(stopped(after)) > 0 {
		t.Errorf("got %+v, then %+v", before, after)
	}
}

// A worker that ended by itself while others are being stopped was not stopped.
func TestStoppedByNobody(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("exit:0"), do("say:up", "hang")))
	lab.PID("up")
	awaitEnd(t, g.PIDs()[0])
	g.Close(syscall.SIGTERM, long)
	if d := cmp.Diff(map[int]int{1: 15}, stopped(wait(t, g))); d != "" {
		t.Error(d)
	}
}

func TestWait(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("tell:15", "say:up", "gate")))
	lab.PID("up")
	cause := errors.New("had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if r, err := g.Wait(ctx); r != nil || err != cause {
		t.Errorf("got %v, %v, want %v", r, err, cause)
	}
	late, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if r, err := g.Wait(late); r != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v, want a deadline exceeded", r, err)
	}
	lab.OpenGate() // the worker lives on, and nobody signalled it
	r := wait(t, g)
	if again, err := g.Wait(ctx); again != r || err != nil {
		t.Errorf("after the end: got %v, %v", again, err)
	}
	if r.IsFailed() {
		t.Errorf("failed: %+v", r.Failures)
	}
	lab.NoMore()
}

func TestSupervisorClose(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		cfg := workers(lab, do(strays[0], strays[3], "ignore:15", "say:up", "hang"), do("say:up", "hang"))
		cfg.LeftoverGrace = long
		one, two := start(t, s, cfg), start(t, s, cfg)
		lab.Lines(8)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		lab.CheckNothingLeft()
		for _, g := range []*process.Group{one, two} {
			if d := cmp.Diff(map[int]int{0: -9, 1: -9}, codes(wait(t, g))); d != "" {
				t.Error(d)
			}
		}
		if _, err := s.Start(cfg); !errors.Is(err, process.ErrClosed) {
			t.Errorf("start: got %v, want %v", err, process.ErrClosed)
		}
		if err := s.Close(); err != nil {
			t.Error("again:", err)
		}
		if s.HasCgroup() {
			if _, err := os.Stat(s.CgroupPath()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the cgroup is still there: %v", err)
			}
		}
	})
}

// Where a cgroup can be made but no process can be started in it, workers do
// without, and what they leave behind is found all the same.
func TestUselessCgroup(t *testing.T) {
	var seen journal
	s := supervisor(t, process.SupervisorConfig{Guard: true, Logger: seen.logger()})
	if !s.HasCgroup() {
		t.Skip("needs the right to make a cgroup")
	}
	// A threaded cgroup beside those of the workers makes theirs invalid.
	threaded := filepath.Join(s.CgroupPath(), "threaded")
	if err := os.Mkdir(threaded, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(threaded, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Skipf("needs threaded cgroups: %v", err)
	}
	for range 2 {
		lab := testproc.New(t)
		cfg := workers(lab,
			do(strays[1], strays[3], "say:up", "gate"), do(strays[1], strays[3], "say:up", "gate"),
			do("say:up", "ignore:15", "hang"))
		cfg.LeftoverGrace = time.Millisecond
		g := start(t, s, cfg)
		if s.HasCgroup() {
			t.Error("the cgroup is still in use")
		}
		lab.Lines(7)
		lab.OpenGate()
		awaitReaped(t, g.PIDs()[0], g.PIDs()[1])
		if n := len(lab.Left()); n != 1 {
			t.Errorf("%d processes are left, want the third worker only", n)
		}
		g.Close(syscall.SIGKILL, 0)
		if d := cmp.Diff(map[int]int{0: 0, 1: 0, 2: -9}, codes(wait(t, g))); d != "" {
			t.Error(d)
		}
		lab.CheckNothingLeft()
	}
	if n := strings.Count(seen.String(), "no cgroups for workers"); n != 1 {
		t.Errorf("the log says %d times that there are no cgroups:\n%s", n, seen.String())
	}
}
