package process_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// Workers that do not heed their signal are shown before they are killed, and only
// they.
func TestUnheeded(t *testing.T) {
	for _, tt := range []struct {
		name string
		stop func(*testproc.Lab, *process.Group)
	}{
		{"Close", func(_ *testproc.Lab, g *process.Group) { g.Close(syscall.SIGTERM, long) }},
		{"a peer fails", func(lab *testproc.Lab, _ *process.Group) { lab.OpenGate() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			cfg := workers(lab, do("say:up", "hang"), do("ignore:15", "say:up", "hang"), do("say:up", "gate", "exit:3"))
			cfg.Grace = long
			seen := make(chan map[int]int, 2)
			alive := false
			cfg.Unheeded = func(ctx context.Context, pids map[int]int) {
				alive = syscall.Kill(pids[1], 0) == nil
				seen <- pids
				<-ctx.Done() // nobody waits for this before the kill
			}
			g := start(t, s, cfg)
			pids := g.PIDs()
			lab.PIDs("up", 3)
			done := stopAll(func() { tt.stop(lab, g) })
			// Only when the others have heeded the signal does the end of the grace
			// come in sight.
			awaitEnd(t, pids[0], pids[2])
			g.Close(syscall.SIGTERM, 6*time.Second)
			<-done
			r := wait(t, g)
			if d := cmp.Diff(map[int]int{1: pids[1]}, <-seen); d != "" {
				t.Errorf("those that do not heed the signal, want -, got +:\n%s", d)
			}
			if len(seen) != 0 || !alive {
				t.Errorf("called again %d times; the worker was alive: %v", len(seen), alive)
			}
			if got := codes(r)[1]; got != -9 {
				t.Errorf("the worker's code is %d, want -9", got)
			}
		})
	}
}

// Workers are shown before they are stopped, apart from those that have ended.
func TestBeforeStop(t *testing.T) {
	for _, tt := range []struct {
		name string
		stop func(*testproc.Lab, *process.Group)
		want int
	}{
		{"Close", func(_ *testproc.Lab, g *process.Group) { g.Close(syscall.SIGTERM, long) }, 3},
		{"a peer fails", func(lab *testproc.Lab, _ *process.Group) { lab.OpenGate() }, 2},
		{"Kill", func(_ *testproc.Lab, g *process.Group) { g.Kill() }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			cfg := workers(lab, do("say:up", "hang"), do("say:up", "hang"), do("say:up", "gate", "exit:3"))
			cfg.Grace = long
			seen := make(chan map[int]int, 2)
			cfg.BeforeStop = func(failed []process.Exit, pids map[int]int) {
				if (len(failed) == 1 && failed[0].LocalRank == 2 && failed[0].Code == 3) != (tt.want == 2) {
					t.Errorf("these have failed: %v", failed)
				}
				for _, pid := range pids {
					if err := syscall.Kill(pid, 0); err != nil {
						t.Errorf("process %d has ended: %v", pid, err)
					}
				}
				seen <- pids
			}
			g := start(t, supervisor(t, process.SupervisorConfig{}), cfg)
			want := g.PIDs()
			lab.PIDs("up", 3)
			tt.stop(lab, g)
			r := wait(t, g)
			if tt.want == 0 && len(seen) == 0 {
				return
			}
			if tt.want == 2 {
				delete(want, 2)
			}
			if d := cmp.Diff(want, <-seen); d != "" || len(seen) > 0 {
				t.Errorf("those that run, want -, got +:\n%s; called again %d times; %v", d, len(seen), codes(r))
			}
		})
	}
}

// There is nothing to see where all heed the signal, or have no time to.
func TestNothingUnheeded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		worker []string
		grace  time.Duration
	}{
		{"all heed it", do("say:up", "hang"), long},
		{"no grace", do("ignore:15", "say:up", "hang"), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := testproc.New(t)
			s := supervisor(t, process.SupervisorConfig{})
			cfg := workers(lab, tt.worker)
			cfg.Unheeded = func(_ context.Context, pids map[int]int) { t.Errorf("called with %v", pids) }
			g := start(t, s, cfg)
			lab.PIDs("up", 1)
			g.Close(syscall.SIGTERM, tt.grace)
			wait(t, g)
		})
	}
}
