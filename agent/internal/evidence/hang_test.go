package evidence

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/job/autopsy"
)

// A worker that has ended is not why another one hangs.
func TestSuspects(t *testing.T) {
	at := func(function string) autopsy.Python {
		return autopsy.Python{Threads: []autopsy.Thread{{Main: true, Frames: []autopsy.Frame{{Function: function, File: "train.py", Line: 1}}}}}
	}
	ended := autopsy.Worker{Rank: 0, State: "gone"}
	reads, waits, waitsToo := autopsy.Worker{Rank: 1, Python: at("read")}, autopsy.Worker{Rank: 2, Python: at("all_reduce")}, autopsy.Worker{Rank: 3, Python: at("all_reduce")}
	for _, tt := range []struct {
		name    string
		workers []autopsy.Worker
		want    []int
	}{
		{"one ended", []autopsy.Worker{ended, reads}, []int{1}},
		{"one ended, one of three differs", []autopsy.Worker{ended, reads, waits, waitsToo}, []int{1}},
		{"one ended, all others wait", []autopsy.Worker{ended, waits, waitsToo}, []int{2, 3}},
	} {
		e := &Evidence{Report: &autopsy.Report{Workers: tt.workers}}
		for _, rank := range tt.want {
			if !e.suspects(rank) {
				t.Errorf("%s: rank %d is not a suspect", tt.name, rank)
			}
		}
		if len(tt.workers) > 1+len(tt.want) && e.suspects(2) {
			t.Errorf("%s: rank 2 is a suspect", tt.name)
		}
	}
}

// From the last sign of life on, a hang is noticed within the timeout and one look, wherever between two looks that was,
// and never before the timeout.
func TestHangIsNoticedInTime(t *testing.T) {
	for _, timeout := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 5 * time.Second, 7 * time.Second, 10 * time.Second, 10 * time.Minute} {
		every := lookEvery(timeout)
		if most := max(timeout/10, min(timeout, max(timeout/4, 800*time.Millisecond))); every > most || every > 10*time.Second {
			t.Errorf("with a timeout of %v a look every %v", timeout, every)
		}
		for part := range time.Duration(10) {
			began := time.Unix(0, 0)
			last := began.Add(3*every + part*every/10)
			at := func(now time.Time) map[int]vital {
				if now.Before(last) {
					return map[int]vital{0: {works: now.String()}}
				}
				return map[int]vital{0: {works: "stuck", waits: true}}
			}
			w, now := newWatched(timeout, at(began), began), began
			for idle := time.Duration(0); idle < timeout; {
				now = now.Add(every)
				idle = w.look(at(now), now)
			}
			if took := now.Sub(last); took < timeout-time.Millisecond || took > timeout+every {
				t.Errorf("with a timeout of %v, %v after a look: noticed after %v", timeout, part*every/10, took)
			}
		}
	}
}

// Workers that idle are found out in time however short the timeout is, though their
// CPU time comes in ticks: each of eight uses half a percent of a CPU in the background. One that
// spins while the others wait is none that makes progress; one that writes is.
func TestIdleWorkersHang(t *testing.T) {
	const tick = 10 * time.Millisecond
	for _, timeout := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
		for _, tt := range []struct {
			name string
			busy int // how many use 3 %
			says bool
			hang bool
		}{{"idle", 0, false, true}, {"one spins", 1, false, true}, {"all compute", 8, false, false}, {"one writes", 0, true, false}} {
			began := time.Unix(0, 0)
			at := func(now time.Time) map[int]vital {
				v := map[int]vital{}
				for i := range 8 {
					// The ticks of the workers come at different times.
					used := now.Add(time.Duration(i)*270*time.Millisecond).Sub(began) / 200
					if i < tt.busy {
						used *= 6
					}
					v[i] = vital{cpu: used.Truncate(tick), written: 7}
					if tt.says && i == 3 {
						v[i] = vital{cpu: v[i].cpu, written: now.UnixNano()}
					}
				}
				return v
			}
			w := newWatched(timeout, at(began), began)
			idle, now := time.Duration(0), began
			for idle < timeout && now.Sub(began) < 2*time.Minute {
				now = now.Add(lookEvery(timeout))
				idle = w.look(at(now), now)
			}
			if took := now.Sub(began); tt.hang != (took < 2*time.Minute) || tt.hang && took > timeout+2*lookEvery(timeout) {
				t.Errorf("timeout %v, %s: found out after %v", timeout, tt.name, took)
			}
			if busy := w.busy(); tt.hang && len(busy) != tt.busy {
				t.Errorf("timeout %v, %s: busy are %v", timeout, tt.name, busy)
			}
		}
	}
}

// A worker that waits is not called busy for one second in which it used some CPU, whenever in the
// wait that is, nor for the work that it did before it waited.
func TestBlipIsNotBusy(t *testing.T) {
	const timeout = 8 * time.Second
	for _, worked := range []int{0, 3} {
		for blip := 1; blip <= 20; blip++ {
			w := newWatched(timeout, map[int]vital{0: {}, 1: {}}, time.Unix(0, 0))
			idle, cpu, now := time.Duration(0), time.Duration(0), 0
			for idle < timeout {
				now++
				if now == blip {
					cpu += 50 * time.Millisecond
				}
				if now <= worked {
					cpu += 800 * time.Millisecond
				}
				idle = w.look(map[int]vital{0: {}, 1: {cpu: cpu}}, time.Unix(int64(now), 0))
			}
			if busy := w.busy(); len(busy) > 0 {
				t.Errorf("worked until %d s, a blip at %d s: busy are %v at %d s", worked, blip, busy, now)
			}
		}
	}
}

// A look that comes a moment early does not delay what the timeout is for until the next one.
func TestLookComesEarly(t *testing.T) {
	const timeout = 5 * time.Second
	now := time.Unix(0, 0)
	w := newWatched(timeout, map[int]vital{0: {}}, now)
	for range 7 {
		now = now.Add(lookEvery(timeout) - 5*time.Millisecond)
		w.look(map[int]vital{0: {}}, now)
	}
	if w.idle < timeout {
		t.Errorf("after seven looks: %v", w.idle)
	}
}

// A job that was paused as a whole has not hung meanwhile. One that hangs is told of once, however long that
// takes.
func TestPausedJobDoesNotHang(t *testing.T) {
	const timeout, pause = 5 * time.Second, 75 * time.Second
	now := time.Unix(0, 0)
	w := newWatched(timeout, map[int]vital{0: {}}, now)
	look := func(later time.Duration, written int64) time.Duration {
		now = now.Add(later)
		return w.look(map[int]vital{0: {written: written}}, now)
	}
	for second := range 9 {
		look(lookEvery(timeout), int64(second/3))
	}
	if idle := look(pause, 2); idle > 0 {
		t.Errorf("hangs for %v after a pause", idle)
	}
	idle := time.Duration(0)
	for n := 0; idle < timeout; n++ {
		if idle = look(lookEvery(timeout), 2); n > 10 {
			t.Fatal("a hang after the pause is not found")
		}
	}
	if idle := look(pause, 2); idle < timeout {
		t.Errorf("hangs for %v after it took long to tell of the hang", idle)
	}
}

// What a worker was killed for stays its cause while it ends.
func TestFirstDeadlineIsTheCause(t *testing.T) {
	c := collector(nil, &workers{})
	c.NoteDeadline(1, "timer")
	c.NoteDeadline(0, "hang")
	c.NoteDeadline(1, "hang")
	if got := c.Deadline(1); got != "timer" {
		t.Errorf("rank 1 was killed for %q", got)
	}
	if got := c.Deadline(0); got != "hang" {
		t.Errorf("rank 0 was killed for %q", got)
	}
}

func TestFoundOn(t *testing.T) {
	for reason, want := range map[string]string{
		"host2: hang: no output of this host's workers for 8s": "; host2 has found that the workers hang",
		"hang: no output":   "",
		"timer: batch":      "",
		": hang: of nobody": "",
	} {
		if got := foundOn(reason); got != want {
			t.Errorf("%q: got %q, want %q", reason, got, want)
		}
	}
}

// A worker that has ended waits for nobody.
func TestVitalsOfTheLiving(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	v := collector(nil, &workers{pids: map[int]int{0: os.Getpid(), 1: ended.Process.Pid}}).vitals()
	if _, there := v[0]; len(v) != 1 || !there {
		t.Errorf("%v, want that of 0 alone", v)
	}
}

// Workers that use all of their CPUs hang if a collective is under way and none begins or ends, and not while
// none is under way: they compute, compile, save or load. One that does not answer is as it was.
func TestSpinningWorkersHang(t *testing.T) {
	const timeout = 5 * time.Second
	type look struct {
		works string
		waits bool
	}
	for _, tt := range []struct {
		name string
		at   func(second, rank int) look
		says bool
		want time.Duration
	}{
		{"one waits", func(_, rank int) look { return look{"0:5/4", rank == 1} }, false, timeout},
		{"nobody waits", func(int, int) look { return look{"0:5/5", false} }, false, 0},
		{"they go on", func(second, rank int) look { return look{string(rune('a' + second)), rank == 1} }, false, 0},
		{"one goes on, slower than the others", func(second, rank int) look {
			if rank == 0 {
				return look{string(rune('a' + second/4)), true}
			}
			return look{"0:5/4", true}
		}, false, 0},
		{"one writes", func(_, rank int) look { return look{"0:5/4", rank == 1} }, true, 0},
		{"no answers", func(int, int) look { return look{} }, false, 0},
		{"no answer from one any more", func(second, rank int) look {
			if rank == 0 && second > 2 {
				return look{}
			}
			return look{"0:5/4", true}
		}, false, timeout},
		{"after a while", func(second, rank int) look {
			if second < 7 {
				return look{string(rune('a' + second)), true}
			}
			return look{"z", true}
		}, false, 7*time.Second + timeout},
	} {
		vitals := func(second int) map[int]vital {
			v := map[int]vital{}
			for rank := range 2 {
				l := tt.at(second, rank)
				v[rank] = vital{cpu: time.Duration(second) * time.Second, works: l.works, waits: l.waits}
				if tt.says && rank == 0 {
					v[rank] = vital{cpu: v[rank].cpu, written: int64(second), works: l.works, waits: l.waits}
				}
			}
			return v
		}
		w, second := newWatched(timeout, vitals(0), time.Unix(0, 0)), 0
		for second < 40 && w.idle < timeout {
			second++
			w.look(vitals(second), time.Unix(int64(second), 0))
		}
		if got := time.Duration(second) * time.Second; w.idle >= timeout != (tt.want > 0) || tt.want > 0 && (got < tt.want || got > tt.want+time.Second || !w.stuck) {
			t.Errorf("%s: after %v, want %v; stuck is %t", tt.name, got, tt.want, w.stuck)
		}
	}
}

// A patience is never shorter than ten minutes, nor than three times what the job has survived. A time that
// still runs says nothing.
func TestPatience(t *testing.T) {
	const minute = time.Minute
	var p patience
	for i, tt := range []struct{ idle, want time.Duration }{
		{0, 10 * minute}, {3 * minute, 10 * minute}, {0, 10 * minute}, {5 * minute, 10 * minute}, {9 * minute, 10 * minute},
		{minute, 27 * minute}, {20 * minute, 27 * minute}, {0, 60 * minute}, {2 * minute, 60 * minute}, {0, 60 * minute},
	} {
		if got := p.timeout(tt.idle); got != tt.want {
			t.Errorf("%d: %v after %v, want %v", i, got, tt.idle, tt.want)
		}
	}
}
