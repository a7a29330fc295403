package autopsy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/host/procfs"
)

// Processes that cannot be looked at hold up the look at the others once, not one after the
// other.
func TestFindBesideStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		all := make([]procfs.Stat, 100)
		for i := range all {
			all[i].PID, all[i].Parent = i+1, 1000+i
		}
		began := time.Now()
		envs := environs(t.Context(), all, func(pid int) environ {
			if pid%2 == 0 {
				<-stuck
			}
			return environ{runID: "r", rank: pid}
		})
		if took := time.Since(began); took != lookLimit || len(envs) != 50 {
			t.Errorf("%d of 50 after %v", len(envs), took)
		}
		if e := envs[7]; e.pid != 7 || e.parent != 1006 || e.rank != 7 {
			t.Errorf("%+v", e)
		}
		close(stuck)
	})
}
