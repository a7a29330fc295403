package timer_test

import (
	"context"
	"math"
	"os"
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
					r := timer.Request{PID: me, ScopeID: st.scope, ExpirationTime: base + st.after, Signal: st.signal}
					if st.after < 0 {
						r.ExpirationTime = st.after
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
