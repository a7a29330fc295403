package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/procfs"
)

// A worker that uses less than this share of one CPU does nothing that counts as
// progress: background threads (PyTorch's heartbeats, Python's own) wake up a few
// times a second, also in a worker that hangs.
const idleShare = 0.02

// A vital is the signs of life of a worker, summed up since its start.
type vital struct {
	cpu     time.Duration
	written int64
	timers  int64 // requests that the timers of all workers have had
}

// watchProgress finds out when no worker of this host does anything any more. Once they have
// done nothing for Config.HangTimeout, it kills them, so that the group fails, or only keeps
// evidence of them (hung).
func (a *Agent) watchProgress(at *attempt) {
	timeout := a.cfg.HangTimeout
	ticker := time.NewTicker(lookEvery(timeout))
	defer ticker.Stop()
	w := watched{last: a.vitals(at), seen: time.Now()}
	w.active = w.seen
	told := false
	for {
		select {
		case <-ticker.C:
		case <-at.ended:
			return
		case <-at.life.Done():
			return
		}
		idle := w.look(a.vitals(at), time.Now())
		if idle >= timeout && !told {
			a.hung(at, idle)
		}
		told = idle >= timeout
	}
}

// lookEvery returns how often to look at the workers. The kernel tells CPU time in ticks
// of 10 ms: within much less than a second, one tick of an idle worker is more than
// idleShare.
func lookEvery(timeout time.Duration) time.Duration {
	return max(min(timeout/10, 10*time.Second), min(timeout, time.Second), 50*time.Millisecond)
}

// watched is what is known of the workers of one attempt.
type watched struct {
	last         map[int]vital
	seen, active time.Time // when they were looked at, and had done something
}

// look takes the workers as they are now and returns how long they have done nothing.
func (w *watched) look(v map[int]vital, now time.Time) time.Duration {
	if v == nil || progressed(w.last, v, now.Sub(w.seen)) {
		w.active = now
	}
	w.last, w.seen = v, now
	return now.Sub(w.active)
}

// vitals looks at the workers, by local rank; nil if that is not possible.
func (a *Agent) vitals(at *attempt) map[int]vital {
	pids := at.group.PIDs()
	uses, err := procfs.Uses(slices.Collect(maps.Values(pids)))
	if err != nil {
		return nil
	}
	v, timers := make(map[int]vital, len(pids)), a.timerRequests()
	for i, pid := range pids {
		v[i] = vital{cpu: uses[pid].CPU, written: at.logs.Output(i).Bytes, timers: timers}
	}
	return v
}

// progressed says whether any worker has done something in a while.
func progressed(before, now map[int]vital, in time.Duration) bool {
	for i, v := range now {
		b := before[i]
		if v.written != b.written || v.timers != b.timers || (v.cpu-b.cpu).Seconds() > idleShare*in.Seconds() {
			return true
		}
	}
	return len(now) != len(before)
}

// hung acts on workers that do nothing.
func (a *Agent) hung(at *attempt, idle time.Duration) {
	what := fmt.Sprintf("no output, no CPU time and no timer activity of this host's workers for %v", idle.Round(100*time.Millisecond))
	a.log.Error("the workers hang: "+what, "run_id", a.cfg.Rendezvous.RunID(), "kill", !a.cfg.HangNotify)
	a.emitElsewhere(Suspected{"the workers hang", what})
	a.autopsyOfJob(context.WithoutCancel(at.life), at, "hang: "+what, at.group.PIDs())
	if a.cfg.HangNotify || a.yield(at.life, at, at.group) {
		return
	}
	for i := range at.group.PIDs() {
		at.accuse(i, failure.HangPrefix+what)
	}
	at.group.Kill()
}
