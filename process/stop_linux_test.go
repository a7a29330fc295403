package process_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/testproc"
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
			s := supervisor(t, process.SupervisorConfig{NoCgroup: m.noCgroup, ReapOrphans: m.reap})
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
		first := g.PIDs()[0]
		for syscall.Kill(first, 0) == nil {
			time.Sleep(time.Millisecond) // until it is reaped, which is when nothing is left of it
		}
		if n := len(lab.Left()); n != 2 {
			t.Errorf("%d processes left, want the other worker and its child", n)
		}
		if err := g.Close(syscall.SIGTERM, long); err != nil {
			t.Error(err)
		}
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
		if err := g.Close(syscall.SIGTERM, 20*time.Millisecond); err != nil {
			t.Error(err)
		}
		lab.CheckNothingLeft()
		r := wait(t, g)
		if d := cmp.Diff(map[int]int{0: -9, 1: 4, 2: -15}, codes(r)); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[int]int{0: 15, 1: 15, 2: 15}, stopped(r)); d != "" {
			t.Error(d)
		}
		if err := g.Close(syscall.SIGTERM, 0); err != nil {
			t.Error("again:", err)
		}
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
		closed := make(chan error)
		go func() { closed <- g.Close(syscall.SIGINT, long) }()
		second := g.PIDs()[1]
		for !ended(second) {
			time.Sleep(time.Millisecond)
		}
		g.Kill()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		lab.CheckNothingLeft()
		if d := cmp.Diff(map[int]int{0: -9, 1: 0}, codes(wait(t, g))); d != "" {
			t.Error(d)
		}
	})
}
