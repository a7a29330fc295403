package timer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

// now is the wall clock as requests carry it.
func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// A reaped expiry, with the time it came.
type reaped struct {
	At     time.Duration
	PID    int
	Scopes []string
	Signal syscall.Signal
}

// record returns a Reap that notes what it gets instead of killing.
func record(begin time.Time, to chan<- reaped) func(context.Context, *timer.Expiry) error {
	return func(_ context.Context, e *timer.Expiry) error {
		r := reaped{At: time.Since(begin), PID: e.PID, Signal: e.Signal}
		for _, t := range e.Timers {
			r.Scopes = append(r.Scopes, t.ScopeID)
		}
		to <- r
		return nil
	}
}

func TestReapsAtTheDeadline(t *testing.T) {
	me := os.Getpid()
	type step struct {
		at     time.Duration
		scope  string
		after  float64 // of the begin; negative releases
		signal syscall.Signal
	}
	tests := []struct {
		name  string
		steps []step
		want  []reaped
	}{
		{"one", []step{{0, "a", 1, 9}}, []reaped{{time.Second, me, []string{"a"}, 9}}},
		{"released", []step{{0, "a", 1, 9}, {500, "a", -1, 0}}, nil},
		{"replaced by a later one", []step{{0, "a", 1, 9}, {500, "a", 3, 15}}, []reaped{{3 * time.Second, me, []string{"a"}, 15}}},
		{"replaced by an earlier one", []step{{0, "a", 5, 9}, {500, "a", 1, 15}}, []reaped{{time.Second, me, []string{"a"}, 15}}},
		{"in the past", []step{{0, "a", -1e9 + 1, 9}}, nil},
		{"first of two drops both", []step{{0, "a", 2, 9}, {0, "b", 1, 15}}, []reaped{{time.Second, me, []string{"b"}, 15}}},
		{"signal 0 is reported and drops the rest", []step{{0, "a", 1, 0}, {0, "b", 2, 9}}, nil},
		{"negative signal", []step{{0, "a", 1, -1}}, nil},
		{"the first positive signal names the kill", []step{{0, "z", 1, 0}, {0, "y", 1, 15}, {0, "x", 1, 9}}, []reaped{{time.Second, me, []string{"z", "y"}, 15}}},
		{"never", []step{{0, "a", math.Inf(1), 9}, {0, "b", math.NaN(), 9}, {0, "c", 1e22, 9}, {0, "d", 253402300799, 9}}, nil},
		{"never replaces a deadline", []step{{0, "a", 1, 9}, {0, "a", math.NaN(), 9}}, nil},
		{"a deadline replaces never", []step{{0, "a", math.Inf(1), 9}, {0, "a", 1, 9}}, []reaped{{time.Second, me, []string{"a"}, 9}}},
		{"unknown release", []step{{0, "b", -1, 0}, {0, "a", 1, 9}}, []reaped{{time.Second, me, []string{"a"}, 9}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				got := make(chan reaped, 10)
				begin := time.Now()
				s, err := timer.NewServer(timer.Plain(timer.Config{Reap: record(begin, got)}))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				base := now()
				for _, st := range tt.steps {
					time.Sleep(time.Until(begin.Add(st.at * time.Millisecond)))
					r := timer.Request{PID: me, ScopeID: st.scope, ExpirationTime: timer.FromSeconds(base + st.after), Signal: st.signal}
					if st.after < 0 {
						r.ExpirationTime = time.Time{}
					}
					if err := s.Register([]timer.Request{r}); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Minute)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				close(got)
				var list []reaped
				for r := range got {
					r.At = r.At.Round(time.Microsecond)
					list = append(list, r)
				}
				if diff := cmp.Diff(tt.want, list); diff != "" {
					t.Error("(-want +got)\n" + diff)
				}
			})
		})
	}
}

// start runs a server in a synctest bubble until the function it returns is called.
func start(t *testing.T, cfg timer.Config) (s *timer.Server, stop func()) {
	t.Helper()
	s, err := timer.NewServer(timer.Plain(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func register(t *testing.T, s *timer.Server, requests ...timer.Request) {
	t.Helper()
	if err := s.Register(requests); err != nil {
		t.Fatal(err)
	}
}

// A step of the wall clock is noticed within MaxInterval, and until then the server
// counts as late.
func TestClockStep(t *testing.T) {
	tests := []struct {
		name    string
		step    time.Duration // after a minute
		want    time.Duration // when the timer of ten minutes goes off
		stale   bool          // is the server late just after the step
		expires time.Duration
	}{
		{"none", 0, 10 * time.Minute, false, 10 * time.Minute},
		{"forward", 5 * time.Minute, 5 * time.Minute, false, 10 * time.Minute},
		{"over the deadline", time.Hour, time.Minute + 10*time.Second, true, 10 * time.Minute},
		{"back", -time.Minute, 11 * time.Minute, false, 10 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var step atomic.Int64
				clock := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
				got := make(chan reaped, 1)
				s, stop := start(t, timer.WithClock(timer.Config{Reap: record(begin, got)}, clock))
				defer stop()
				register(t, s, req(os.Getpid(), "s", now()+tt.expires.Seconds(), 9))
				time.Sleep(time.Minute + time.Millisecond)
				if p := s.Progress(); !p.Equal(clock()) {
					t.Errorf("progress %v, want now", p)
				}
				step.Store(int64(tt.step))
				if stale := s.Progress().Before(clock()); stale != tt.stale {
					t.Errorf("late after the step: %v, want %v", stale, tt.stale)
				}
				r := <-got
				if late := r.At - tt.want; late < 0 || late > 10*time.Second {
					t.Errorf("reaped after %v, want %v", r.At, tt.want)
				}
				synctest.Wait()
				if p := s.Progress(); !p.Equal(clock()) {
					t.Errorf("progress %v afterwards, want now", p)
				}
			})
		})
	}
}

// The log names the scopes of a process's expired timers, of many the last.
func TestExpiredScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		got := make(chan reaped, 1)
		s, stop := start(t, timer.Config{Reap: record(time.Now(), got), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		deadline := now() + 1
		for i := range 12 { // a signal of 0 ends nothing, so that more expire
			register(t, s, req(os.Getpid(), fmt.Sprint("s", i), deadline, syscall.Signal(9*(i/11))))
		}
		if r := <-got; len(r.Scopes) != 12 {
			t.Errorf("got %q", r.Scopes)
		}
		stop()
		if want := `count=12 scope_ids="[s4 s5 s6 s7 s8 s9 s10 s11]"`; !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s: %s", want, &log)
		}
	})
}

// A server without timers does nothing at all, however long, and is alive.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		clock := func() time.Time { looks.Add(1); return time.Now() }
		s, stop := start(t, timer.WithClock(timer.Config{MaxInterval: time.Millisecond}, clock))
		time.Sleep(24 * time.Hour)
		register(t, s, req(os.Getpid(), "never", math.Inf(1), 9), req(os.Getpid(), "s", now()+1, 9), req(os.Getpid(), "s", -1, 0))
		synctest.Wait()
		before := looks.Load()
		time.Sleep(24 * time.Hour)
		if n := looks.Load() - before; n > 0 {
			t.Errorf("it looked at the clock %d times", n)
		}
		if p := s.Progress(); !p.Equal(time.Now()) {
			t.Errorf("progress %v, want now", p)
		}
		stop()
		ended := time.Now()
		time.Sleep(time.Hour)
		if p := s.Progress(); !p.Equal(ended) {
			t.Errorf("progress %v after the end, want %v", p, ended)
		}
		if err := s.Register([]timer.Request{req(os.Getpid(), "s", 1, 9)}); !errors.Is(err, timer.ErrNotOwned) {
			t.Errorf("register after the end: %v", err)
		}
		if err := s.Run(t.Context()); err == nil {
			t.Error("it runs again")
		}
	})
}

func TestRefused(t *testing.T) {
	me := os.Getpid()
	s, err := timer.NewServer(timer.Config{MaxTimers: 3, Owns: func(pid int) bool { return pid == me }})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		request timer.Request
		want    error
	}{
		{"first", req(me, "a", 1e10, 9), nil},
		{"longest scope", req(me, strings.Repeat("s", 4096), 1e10, 9), nil},
		{"scope too long", req(me, strings.Repeat("s", 4097), 1e10, 9), timer.ErrInvalid},
		{"bytes of all scopes", req(me, "x"+strings.Repeat("s", 4000), 1e10, 9), timer.ErrTooMany},
		{"third", req(me, "b", math.NaN(), 9), nil},
		{"fourth", req(me, "c", 1e10, 9), timer.ErrTooMany},
		{"replaces", req(me, "a", 2e10, 9), nil},
		{"pid 0", req(0, "a", 1e10, 9), timer.ErrInvalid},
		{"pid -1", req(-1, "a", 1e10, 9), timer.ErrInvalid},
		{"no process", req(math.MaxInt32, "a", 1e10, 9), syscall.ESRCH},
		{"no number of a process", req(math.MaxInt32+1, "a", 1e10, 9), timer.ErrInvalid},
		{"somebody else's", req(1, "a", 1e10, 9), timer.ErrNotOwned},
		{"signal", req(me, "a", 1e10, 65), timer.ErrInvalid},
		{"release of a stranger", req(1, "a", -1, 0), nil},
		{"release", req(me, "b", -1, 0), nil},
		{"again third", req(me, "c", 1e10, 9), nil},
	}
	refused := uint64(0)
	for _, tt := range tests {
		err := s.Register([]timer.Request{tt.request})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.want != nil {
			refused++
			if want := fmt.Sprintf("timer %.64q of process %d: ", tt.request.ScopeID, tt.request.PID); !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v, want %s…", tt.name, err, want)
			}
		}
	}
	if got := s.Stats(); got.Refused != refused || got.Timers != 3 || got.Released != 2 || got.Acquired != 5 {
		t.Errorf("got %+v", got)
	}
	// One bad request does not keep the others out; 16 are named.
	var batch []timer.Request
	for range 20 {
		batch = append(batch, req(0, "a", 1, 9))
	}
	err = s.Register(append(batch, req(me, "c", -1, 0)))
	if n := strings.Count(err.Error(), "\n") + 1; n != 16 {
		t.Errorf("%d errors, want 16", n)
	}
	if got := s.Stats().Timers; got != 2 {
		t.Errorf("%d timers, want 2", got)
	}
}

// What is registered, asked in all ways.
func TestLists(t *testing.T) {
	me, parent := os.Getpid(), os.Getppid()
	s, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	far := float64(1e10)
	register(t, s, req(me, "never", math.NaN(), 9), req(me, "b", far+2, 9), req(me, "a", far+1, 0),
		req(parent, "p", far+1.5, 15), req(me, "c", far+3, 9), req(me, "gone", far, 9), req(me, "gone", -1, 0))
	names := func(list []timer.Request) (names []string) {
		for _, r := range list {
			names = append(names, r.ScopeID)
		}
		return names
	}
	for limit, want := range map[int][]string{
		0: {"a", "p", "b", "c", "never"}, 5: {"a", "p", "b", "c", "never"}, 99: {"a", "p", "b", "c", "never"},
		1: {"a"}, 3: {"a", "p", "b"}, 4: {"a", "p", "b", "c"},
	} {
		if diff := cmp.Diff(want, names(s.Live(limit))); diff != "" {
			t.Errorf("Live(%d) (-want +got)\n%s", limit, diff)
		}
	}
	s.Reset(nil)
	if got := s.Stats(); got.Timers != 0 || got.Processes != 0 {
		t.Errorf("after Reset: %+v", got)
	}
	s.Close()
}

func TestSeconds(t *testing.T) {
	never := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		at   float64
		want time.Time
	}{
		{1.5, time.Unix(1, 5e8)}, {0, time.Unix(0, 0)}, {253402300799, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)},
		{-1, time.Time{}}, {math.NaN(), never}, {math.Inf(1), never}, {math.Inf(-1), time.Time{}}, {1e22, never},
	} {
		if got := timer.FromSeconds(tt.at); !got.Equal(tt.want) {
			t.Errorf("%v: %v, want %v", tt.at, got, tt.want)
		}
	}
	for range 1000 { // what Python writes is written again
		f := 1.7e9 + 1e8*rand.Float64()
		if got := (timer.Request{ExpirationTime: timer.FromSeconds(f)}).Seconds(); got != f {
			t.Errorf("%v becomes %v", f, got)
		}
	}
}

// Who asks for what is due now gets to know what Run has begun, too.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []bool
		s, stop := start(t, timer.Config{
			Logger:   slog.New(slog.DiscardHandler),
			Reap:     func(context.Context, *timer.Expiry) error { time.Sleep(time.Minute); return nil },
			OnExpiry: func(_ timer.Request, killed bool) { time.Sleep(time.Minute); got = append(got, killed) },
		})
		register(t, s, req(os.Getpid(), "a", now()+1, 9))
		time.Sleep(2 * time.Second)
		s.Settle()
		if diff := cmp.Diff([]bool{false, true}, got); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		stop()
	})
}

// The log has what became of a process whose timers have expired.
func TestKillIsLogged(t *testing.T) {
	for want, err := range map[string]error{
		`level=INFO msg="process with expired timers was killed" run_id=job pid=%d signal=15`:                     nil,
		`level=ERROR msg="process with expired timers was not killed" run_id=job pid=%d signal=15 error="no way"`: errors.New("no way"),
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s, stop := start(t, timer.Config{
				RunID: "job", Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Reap: func(context.Context, *timer.Expiry) error { return err },
			})
			register(t, s, req(os.Getpid(), "a", now()+1, 15))
			time.Sleep(2 * time.Second)
			s.Settle()
			stop()
			if want := fmt.Sprintf(want, os.Getpid()); strings.Count(log.String(), want+"\n") != 1 || strings.Count(log.String(), "process with expired timers") != 1 {
				t.Errorf("the log has\n%s, want once %s", log.String(), want)
			}
		})
	}
}

// A random run against the simplest thing that could be right: a map, and a search.
func TestAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		type expired struct {
			at    float64
			scope string
		}
		me := os.Getpid()
		var got []expired
		s, stop := start(t, timer.Config{
			Logger: slog.New(slog.DiscardHandler),
			OnExpiry: func(r timer.Request, _ bool) {
				got = append(got, expired{math.Round(now() * 1000), r.ScopeID})
			}})
		model := map[string]float64{}
		var want []expired
		// until lets time pass: when one expires, all are dropped.
		until := func(at float64) {
			first, scope := math.Inf(1), ""
			for name, end := range model {
				if end < first {
					first, scope = end, name
				}
			}
			if first <= at {
				want = append(want, expired{math.Round(first * 1000), scope})
				clear(model)
			}
		}
		base := math.Ceil(now())
		for step := range 5000 {
			at := base + float64(step)
			time.Sleep(time.Duration((at - now()) * 1e9))
			until(at)
			synctest.Wait()
			var batch []timer.Request
			for range 1 + rnd.IntN(20) {
				scope := strconv.Itoa(rnd.IntN(300))
				if rnd.IntN(3) == 0 {
					batch = append(batch, req(me, scope, -1, 0))
					delete(model, scope)
					continue
				}
				// Never at one instant with another, nor with a step.
				end := at + 0.25 + float64(rnd.IntN(200)) + float64(len(want)%50)/100 + rnd.Float64()/10
				batch = append(batch, req(me, scope, end, 0))
				model[scope] = end
			}
			register(t, s, batch...)
			if live := s.Stats().Timers; live != len(model) {
				t.Fatalf("step %d: %d timers, want %d", step, live, len(model))
			}
		}
		stop()
		if len(want) < 10 {
			t.Errorf("only %d expired", len(want))
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(expired{})); diff != "" {
			t.Error("(-want +got)\n" + diff)
		}
	})
}

// What a process had when its timers were dropped is forgotten, and others' timers
// are as they were.
func TestDroppedTimers(t *testing.T) {
	const n, few = 20_000, 1024
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, err := timer.NewServer(timer.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	me, other := os.Getpid(), os.Getppid()
	entries := func(live int) {
		t.Helper()
		if got := s.Stats().Timers; got != live {
			t.Errorf("%d timers, want %d", got, live)
		}
		if got := timer.Entries(s); got < live || got > live*16/15+few {
			t.Errorf("%d entries for %d timers", got, live)
		}
	}
	times := map[string]float64{}
	for i := range n {
		scope := strconv.Itoa(i)
		times[scope] = math.Floor(1e9 + 1e9*rnd.Float64())
		register(t, s, req(me, scope, 5e9*rnd.Float64()+5e9, 9), req(other, scope, times[scope]+9e9, 9))
	}
	entries(2 * n)
	register(t, s, req(me, "past", 1, 0))
	s.Settle()
	entries(n)
	// Moved and released, they still come in order.
	for scope := range times {
		if rnd.IntN(2) == 0 {
			register(t, s, req(other, scope, -1, 0))
			delete(times, scope)
			continue
		}
		times[scope] = math.Floor(1e9 * rnd.Float64())
		register(t, s, req(other, scope, times[scope]+9e9, 9))
	}
	entries(len(times))
	last := 0.0
	for _, r := range s.Live(0) {
		at := r.Seconds()
		if at < last || at != times[r.ScopeID]+9e9 || r.PID != other {
			t.Fatalf("%v comes after %v, want %v", r, last, times[r.ScopeID]+9e9)
		}
		last = at
	}
	s.Reset(nil)
	entries(0)
}
