package process

import (
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/host/procfs"
)

// What happens to what a worker left behind, by the time since the worker's end.
func TestStagesOfLeftovers(t *testing.T) {
	const term, kill = syscall.SIGTERM, syscall.SIGKILL
	type look struct {
		at   time.Duration
		want syscall.Signal
		do   func(*Group, time.Time) // before it
	}
	stopped := func(g *Group, now time.Time) { g.state, g.told, g.due.kill = stopping, true, now.Add(g.cfg.Grace) }
	for _, tt := range []struct {
		name  string
		cfg   Config
		exit  Exit
		state stateOfGroup
		looks []look
	}{
		{name: "a worker fails", looks: []look{{at: 0}, {at: 199 * time.Millisecond},
			{200 * time.Millisecond, term, nil}, {2199 * time.Millisecond, term, nil}, {2200 * time.Millisecond, kill, nil}}},
		{name: "a short grace", cfg: Config{Leftovers: Leftovers{LeftoverGrace: 100 * time.Millisecond}}, looks: []look{{at: 49 * time.Millisecond},
			{at: 50 * time.Millisecond}, {100 * time.Millisecond, term, nil}, {200 * time.Millisecond, kill, nil}}},
		{name: "no grace", cfg: Config{Leftovers: Leftovers{LeftoverGrace: NoGrace}}, looks: []look{{0, kill, nil}}},
		{name: "the group is killed", state: killing, looks: []look{{0, kill, nil}}},
		{name: "the group is killed meanwhile", looks: []look{{at: 0},
			{time.Millisecond, kill, func(g *Group, _ time.Time) { g.state = killing }}}},
		{name: "a worker succeeds", cfg: Config{Leftovers: Leftovers{HelperTimeout: 30 * time.Second}}, looks: []look{{at: 0},
			{at: 200 * time.Millisecond}, {at: 30 * time.Second}, {30200 * time.Millisecond, term, nil},
			{32 * time.Second, term, nil}, {32200 * time.Millisecond, kill, nil}}},
		{name: "a worker succeeds, helpers have no time", looks: []look{{at: 0},
			{200 * time.Millisecond, term, nil}, {2200 * time.Millisecond, kill, nil}}},
		{name: "a worker succeeds while its peers are stopped", cfg: Config{Leftovers: Leftovers{HelperTimeout: 30 * time.Second}}, state: stopping,
			looks: []look{{at: 0}, {200 * time.Millisecond, term, nil}, {2200 * time.Millisecond, kill, nil}}},
		{name: "a worker fails, and a restart may follow", cfg: Config{Leftovers: Leftovers{HelperTimeout: 30 * time.Second}}, exit: Exit{Code: 1},
			looks: []look{{at: 0}, {200 * time.Millisecond, term, nil}, {2200 * time.Millisecond, kill, nil}}},
		{name: "a worker fails for good", cfg: Config{Leftovers: Leftovers{HelperTimeout: 30 * time.Second, NoRestart: true}}, exit: Exit{Code: 1},
			looks: []look{{at: 0}, {200 * time.Millisecond, term, nil}, {30 * time.Second, term, nil},
				{30200 * time.Millisecond, kill, nil}}},
		{name: "the group is stopped just after a worker has ended", looks: []look{{at: 0},
			{at: time.Millisecond, do: stopped}, {200 * time.Millisecond, term, nil}, {30 * time.Second, term, nil},
			{30001 * time.Millisecond, kill, nil}}},
		{name: "the group is stopped a second after a worker has failed", exit: Exit{Code: 1}, looks: []look{{at: 0},
			{200 * time.Millisecond, term, nil}, {time.Second, term, stopped}, {30 * time.Second, term, nil}, {31 * time.Second, kill, nil}}},
		{name: "a worker crashes", exit: Exit{Code: -int(syscall.SIGSEGV)}, looks: []look{{at: 0},
			{200 * time.Millisecond, term, nil}, {2200 * time.Millisecond, kill, nil}}},
		{name: "a worker that was told to stop", exit: Exit{StoppedBy: term}, state: stopping, looks: []look{{at: 0},
			{200 * time.Millisecond, term, nil}, {29 * time.Second, term, nil},
			{30 * time.Second, kill, func(g *Group, _ time.Time) { g.state = killing }}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.cfg.Grace == 0 {
				tt.cfg.Grace = DefaultGrace
			}
			g := &Group{cfg: tt.cfg, log: slog.New(slog.DiscardHandler), state: tt.state}
			w := &worker{stage: ended, exit: tt.exit}
			begin := time.Now()
			for _, l := range tt.looks {
				now := begin.Add(l.at)
				if l.do != nil {
					l.do(g, now)
				}
				if got := g.stage(w, []procfs.Stat{{PID: 1 << 30}}, now); got != l.want {
					t.Errorf("after %v: signal %d, want %d", l.at, got, l.want)
				}
			}
		})
	}
}
