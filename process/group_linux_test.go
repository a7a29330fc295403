package process_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

func TestSuccess(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			var scripts [][]string
			want := map[int]int{}
			for i := range n {
				scripts = append(scripts, do("exit:0"))
				want[i] = 0
			}
			g := start(t, s, workers(lab, scripts...))
			r := wait(t, g)
			if r.IsFailed() || r.Uninterruptible {
				t.Errorf("failed: %+v", r.Failures)
			}
			if d := cmp.Diff(want, codes(r)); d != "" {
				t.Error(d)
			}
			if len(g.PIDs()) != n {
				t.Errorf("PIDs %v", g.PIDs())
			}
		})
	}
}

func TestFirstFailureStopsTheRest(t *testing.T) {
	lab := testproc.New(t)
	s := supervisor(t, process.SupervisorConfig{})
	g := start(t, s, workers(lab, do("say:up", "hang"), do("say:up", "gate", "exit:3"), do("trap:15:7", "say:up", "hang")))
	lab.PIDs("up", 3)
	lab.OpenGate()
	r := wait(t, g)
	if d := cmp.Diff(map[int]int{0: -15, 1: 3, 2: 7}, codes(r)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[int]int{0: 15, 2: 15}, stopped(r)); d != "" {
		t.Error(d)
	}
}

func TestSignalError(t *testing.T) {
	for sig, want := range map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGUSR1: "SIGUSR1", 63: "SIGRTMIN+29", 33: "signal 33"} {
		if got, want := (&process.SignalError{Signal: sig}).Error(), fmt.Sprintf("received signal %s (%d)", want, int(sig)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Apart, a worker that fails leaves its peers alone, and another takes its place.
func TestReplace(t *testing.T) {
	for _, cgroup := range []bool{true, false} {
		t.Run(fmt.Sprint("cgroup ", cgroup), func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{NoCgroup: !cgroup})
			cfg := workers(lab, do("say:first", "gate", "exit:0"), do("say:first", "exit:3"))
			cfg.Apart = true
			g := start(t, s, cfg)
			lab.PIDs("first", 2)
			if exit := <-g.Failed(); exit.LocalRank != 1 || exit.Code != 3 {
				t.Errorf("failed: %+v", exit)
			}
			before := g.PIDs()
			if err := g.Replace(1, testproc.Args(do("say:second", "kill:9")...), cfg.Envs[1]); err != nil {
				t.Fatal(err)
			}
			lab.PIDs("second", 1)
			if exit := <-g.Failed(); exit.LocalRank != 1 || exit.Code != -9 {
				t.Errorf("failed: %+v", exit)
			}
			if err := g.Replace(1, testproc.Args(do("say:third", "gate", "exit:0")...), cfg.Envs[1]); err != nil {
				t.Fatal(err)
			}
			lab.PIDs("third", 1)
			if err := g.Replace(0, testproc.Args(do("exit:0")...), cfg.Envs[0]); !errors.Is(err, process.ErrNoReplacement) {
				t.Errorf("a worker that runs is replaced: %v", err)
			}
			if after := g.PIDs(); after[0] != before[0] || after[1] == before[1] {
				t.Errorf("PIDs %v, then %v", before, after)
			}
			lab.OpenGate()
			r := wait(t, g)
			if d := cmp.Diff(map[int]int{0: 0, 1: 0}, codes(r)); d != "" || r.IsFailed() {
				t.Errorf("%s, failures %v", d, r.Failures)
			}
			if err := g.Replace(1, testproc.Args(do("exit:0")...), cfg.Envs[1]); !errors.Is(err, process.ErrNoReplacement) {
				t.Errorf("a worker of a group that has ended is replaced: %v", err)
			}
		})
	}
}
