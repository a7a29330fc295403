package process_test

import (
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// A worker that somebody has stopped gets the signal at once, not SIGKILL at the
// end of the grace.
func TestStoppedWorkerHeedsItsSignal(t *testing.T) {
	inModes(t, func(t *testing.T, s *process.Supervisor) {
		lab := testproc.New(t)
		cfg := workers(lab, do("trap:15:4", "say:up", "hang"), do("say:up", "hang"))
		cfg.Grace = long
		g := start(t, s, cfg)
		lab.Lines(2)
		for _, pid := range g.PIDs() {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
				t.Fatal(err)
			}
		}
		g.Close(syscall.SIGTERM, long)
		if d := cmp.Diff(map[int]int{0: 4, 1: -15}, codes(wait(t, g))); d != "" {
			t.Error(d)
		}
		lab.CheckNothingLeft()
	})
}
