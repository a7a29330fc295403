package timer_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

func scopes(requests []timer.Request) []string {
	var s []string
	for _, r := range requests {
		s = append(s, r.ScopeID)
	}
	return s
}

// Source: MultiprocessingRequestQueue in local_timer.py, and its test.
func TestLocalQueueGet(t *testing.T) {
	tests := []struct {
		name    string
		before  []string
		later   []string // after a second
		n       int
		timeout time.Duration
		want    []string
		took    time.Duration
		left    int
	}{
		{name: "empty", n: 1, timeout: 3 * time.Second, took: 3 * time.Second},
		{name: "enough", before: []string{"a", "b", "c"}, n: 2, timeout: 3 * time.Second, want: []string{"a", "b"}, left: 1},
		{name: "exactly", before: []string{"a", "b"}, n: 2, timeout: 3 * time.Second, want: []string{"a", "b"}},
		{name: "too few", before: []string{"a"}, n: 2, timeout: 3 * time.Second, want: []string{"a"}, took: 3 * time.Second},
		{name: "the rest comes", before: []string{"a"}, later: []string{"b", "c"}, n: 2, timeout: 3 * time.Second, want: []string{"a", "b"}, took: time.Second, left: 1},
		{name: "too late", later: []string{"a"}, n: 1, timeout: time.Second / 2, took: time.Second / 2, left: 0},
		{name: "no time", before: []string{"a"}, n: 2, want: []string{"a"}},
		{name: "negative time", before: []string{"a"}, n: 2, timeout: -1, want: []string{"a"}},
		{name: "none", before: []string{"a"}, n: 0, timeout: time.Second, left: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var q timer.LocalQueue
				put := func(names []string) {
					for _, s := range names {
						if err := q.Put(timer.Request{ScopeID: s}); err != nil {
							t.Error(err)
						}
					}
				}
				put(tt.before)
				begin := time.Now()
				timeout := time.AfterFunc(time.Second, func() { put(tt.later) })
				defer timeout.Stop()
				got := q.Get(tt.n, tt.timeout)
				if took := time.Since(begin); took != tt.took {
					t.Errorf("Get took %v, want %v", took, tt.took)
				}
				synctest.Wait()
				if diff := cmp.Diff(tt.want, scopes(got)); diff != "" {
					t.Errorf("Get (-want +got):\n%s", diff)
				}
				if q.Size() != tt.left {
					t.Errorf("Size() = %d, want %d", q.Size(), tt.left)
				}
			})
		})
	}
}

func TestLocalQueueIsBounded(t *testing.T) {
	q := timer.LocalQueue{Limit: 3}
	if err := q.Put(make([]timer.Request, 2)...); err != nil {
		t.Fatal(err)
	}
	if err := q.Put(make([]timer.Request, 2)...); !errors.Is(err, timer.ErrQueueFull) {
		t.Errorf("Put beyond the limit: %v, want ErrQueueFull", err)
	}
	if q.Size() != 2 {
		t.Errorf("%d wait, want the 2 of before", q.Size())
	}
	q.Get(1, 0)
	if err := q.Put(make([]timer.Request, 2)...); err != nil {
		t.Errorf("Put after Get: %v", err)
	}
	client := &timer.LocalClient{Queue: &q}
	if err := client.Acquire("a", time.Time{}); !errors.Is(err, timer.ErrInvalid) {
		t.Errorf("Acquire without a time: %v, want ErrInvalid", err)
	}
	if err := client.Acquire("a", time.Now()); !errors.Is(err, timer.ErrQueueFull) {
		t.Errorf("Acquire: %v, want ErrQueueFull", err)
	}
}

// Every request that is put is got once, and each putter's in order.
func TestLocalQueueConcurrently(t *testing.T) {
	const putters, getters, each = 4, 3, 500
	var q timer.LocalQueue
	var wg sync.WaitGroup
	for p := range putters {
		wg.Go(func() {
			for i := range each {
				if err := q.Put(timer.Request{PID: p, ExpirationTime: float64(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := make([][]timer.Request, getters)
	left := make(chan struct{}, putters*each)
	for range putters * each {
		left <- struct{}{}
	}
	close(left)
	for g := range getters {
		wg.Go(func() {
			for range left {
				got[g] = append(got[g], q.Get(1, time.Minute)...)
			}
		})
	}
	wg.Wait()
	seen := map[timer.Request]int{}
	for _, list := range got {
		last := map[int]float64{}
		for _, r := range list {
			if before, ok := last[r.PID]; ok && before >= r.ExpirationTime {
				t.Errorf("putter %d: %v after %v", r.PID, r.ExpirationTime, before)
			}
			last[r.PID] = r.ExpirationTime
			seen[r]++
		}
	}
	if len(seen) != putters*each {
		t.Errorf("%d different requests, want %d", len(seen), putters*each)
	}
}

// Source: LocalTimerServer in local_timer.py.
func TestLocalServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan reaped, 1)
		begin := time.Now()
		s, err := timer.NewServer(timer.Plain(timer.Config{Reap: record(begin, got)}))
		if err != nil {
			t.Fatal(err)
		}
		var q timer.LocalQueue
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { q.Serve(ctx, s) })

		client := &timer.LocalClient{Queue: &q, Signal: syscall.SIGTERM}
		release, err := timer.Expires(client, time.Second, "done in time")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []timer.Request{{PID: os.Getpid(), ScopeID: "done in time", ExpirationTime: now() + 1, Signal: syscall.SIGTERM}}
		if diff := cmp.Diff(want, s.Live(0)); diff != "" {
			t.Errorf("live (-want +got):\n%s", diff)
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
		// A time before 1970 is past; its number would release.
		if err := client.Acquire("never", time.Unix(1<<40, 0)); err != nil {
			t.Fatal(err)
		}
		if err := client.Acquire("hangs", time.Now().Add(2*time.Second)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(reaped{2 * time.Second, os.Getpid(), []string{"hangs"}, syscall.SIGTERM}, <-got); diff != "" {
			t.Errorf("reaped (-want +got):\n%s", diff)
		}
		if err := client.Acquire("past", time.Unix(-5, 0)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"past"}, (<-got).Scopes); diff != "" {
			t.Errorf("reaped (-want +got):\n%s", diff)
		}
		cancel()
		wg.Wait()
	})
}

// What was put before the end is not lost.
func TestLocalServeHandsOverWhatWaits(t *testing.T) {
	s, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var q timer.LocalQueue
	client := &timer.LocalClient{Queue: &q}
	if err := client.Acquire("a", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Serve(ctx, s)
	if diff := cmp.Diff([]string{"a"}, scopes(s.Live(0))); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
}

// A queue brings no answer, so what is refused is logged.
func TestLocalServeRefuses(t *testing.T) {
	log := newJournal()
	s, err := timer.NewServer(timer.Config{Owns: func(int) bool { return false }, Logger: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	var q timer.LocalQueue
	client := &timer.LocalClient{Queue: &q, PID: os.Getppid(), Signal: -1}
	if err := client.Acquire("the parent's", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	want := timer.Request{PID: os.Getppid(), ScopeID: "the parent's"}
	if got := q.Get(1, 0); len(got) != 1 || got[0].PID != want.PID || got[0].Signal != 0 {
		t.Errorf("%v waits, want %v", got, want)
	} else if err := q.Put(got...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Serve(ctx, s)
	log.await(t, "timer requests refused")
	log.await(t, timer.ErrNotOwned.Error())
}
