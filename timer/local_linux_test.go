package timer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

// Size and Get keep what RequestQueue in api.py promises.
func TestLocalQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q timer.LocalQueue
		begin := time.Now()
		ended, end := context.WithCancel(t.Context())
		end()
		for i := range 5 {
			if err := q.Put(req(1, fmt.Sprint(i), 1, 9)); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			time.Sleep(time.Second)
			_ = q.Put(req(1, "late", 1, 9))
		}()
		minute, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, tt := range []struct {
			ctx   context.Context
			n     int
			want  string
			after time.Duration
		}{
			{ended, 0, "", 0},
			{ended, -1, "", 0},
			{ended, 2, "0 1", 0},
			{t.Context(), 2, "2 3", 0},
			{ended, 9, "4", 0},
			{ended, 9, "", 0},
			{t.Context(), 1, "late", time.Second},
			{minute, 1, "", time.Minute},
		} {
			if got := strings.Join(scopes(q.Get(tt.ctx, tt.n)), " "); got != tt.want {
				t.Errorf("Get(%d): %q, want %q", tt.n, got, tt.want)
			}
			if after := time.Since(begin); after != tt.after {
				t.Errorf("Get(%d) returned after %v, want %v", tt.n, after, tt.after)
			}
		}
		if err := q.Put(make([]timer.Request, 1<<16)...); err != nil {
			t.Error(err)
		}
		if err := q.Put(timer.Request{}); !errors.Is(err, timer.ErrTooMany) {
			t.Errorf("Put into a full queue: %v, want ErrTooMany", err)
		}
		if n := q.Size(); n != 1<<16 {
			t.Errorf("%d requests wait", n)
		}
	})
}

// A queue that a program brings; it does not wait.
type impatient struct{ timer.LocalQueue }

func (q *impatient) Get(_ context.Context, n int) []timer.Request {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return q.LocalQueue.Get(ctx, n)
}

func TestLocalServer(t *testing.T) {
	type queue interface {
		timer.RequestQueue
		Put(...timer.Request) error
	}
	for name, q := range map[string]queue{"LocalQueue": &timer.LocalQueue{}, "its own": &impatient{}} {
		t.Run(name, func(t *testing.T) {
			s, err := timer.StartLocal(timer.Config{Logger: slog.New(slog.DiscardHandler)}, q)
			if err != nil {
				t.Fatal(err)
			}
			w, other := worker(t), worker(t)
			far, near := time.Now().Add(2*time.Hour), time.Now().Add(time.Hour)
			client := &timer.LocalClient{Queue: q, PID: w.Process.Pid}
			self := &timer.LocalClient{Queue: q}
			others := &timer.LocalClient{Queue: q, PID: other.Process.Pid, Signal: -1}
			if err := errors.Join(client.Acquire("far", far), client.Acquire("near", near), self.Acquire("gone", near),
				self.Release("gone"), self.Release("unknown"), others.Acquire("report", near)); err != nil {
				t.Fatal(err)
			}
			for s.Stats().Acquired < 4 || s.Stats().Released < 2 {
				time.Sleep(time.Millisecond)
			}
			want := map[int][]string{w.Process.Pid: {"near"}, other.Process.Pid: {"report"}}
			if diff := cmp.Diff(want, byProcess(s.Expired(near))); diff != "" {
				t.Errorf("expired in an hour (-want +got):\n%s", diff)
			}
			if got := s.Expired(time.Now()); len(got) > 0 {
				t.Errorf("expired now: %v", got)
			}
			s.Clear(other.Process.Pid, 1)
			want = map[int][]string{w.Process.Pid: {"near", "far"}}
			if diff := cmp.Diff(want, byProcess(s.Expired(far))); diff != "" {
				t.Errorf("after Clear, expired in two hours (-want +got):\n%s", diff)
			}
			if late := time.Since(s.Progress()); late > time.Minute {
				t.Errorf("no progress for %v", late)
			}
			if err := client.Acquire("now", time.Now()); err != nil {
				t.Error(err)
			}
			if got := endedBy(t, w); got != syscall.SIGKILL {
				t.Errorf("ended by %v, want SIGKILL", got)
			}
			c := startChild(t, strings.TrimPrefix(s.Env()[0], timer.EnvSocket+"="))
			c.want("ok", "acquire child 3600000")
			for range 2 {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := s.Run(t.Context()); err == nil {
				t.Error("it runs again")
			}
			c.want("error", "acquire child 3600000")
		})
	}
}

func byProcess(expired map[int][]timer.Request) map[int][]string {
	got := map[int][]string{}
	for pid, requests := range expired {
		got[pid] = scopes(requests)
	}
	return got
}

// What waits when the server is closed is taken.
func TestLocalServerTakesTheRest(t *testing.T) {
	var q timer.LocalQueue
	s, err := timer.StartLocal(timer.Config{}, &q)
	if err != nil {
		t.Fatal(err)
	}
	client := &timer.LocalClient{Queue: &q}
	var err1 error
	for i := range 1000 {
		err1 = errors.Join(err1, client.Acquire(fmt.Sprint(i), hour()))
	}
	if err := errors.Join(err1, s.Close()); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().Acquired; got != 1000 || q.Size() > 0 {
		t.Errorf("%d timers, and %d requests wait", got, q.Size())
	}
}

// A mistake is an error.
func TestLocalMistakes(t *testing.T) {
	queue := &timer.LocalQueue{}
	_, noQueue := timer.StartLocal(timer.Config{}, nil)
	_, config := timer.StartLocal(timer.Config{MaxTimers: -1}, queue)
	_, noClient := timer.Expires(nil, time.Hour, "a")
	_, fifo := timer.ListenFIFO(nil, "fifo")
	_, socket := timer.ListenSocket(nil, "")
	for want, err := range map[string]error{
		"queue is nil":       noQueue,
		"MaxTimers -1":       config,
		"client is nil":      noClient,
		"Queue is nil":       (&timer.LocalClient{}).Acquire("a", hour()),
		"Queue is nil; want": (&timer.LocalClient{}).Release("a"),
		"want the one that":  (&timer.LocalClient{Queue: (*timer.LocalQueue)(nil)}).Release("a"),
		"PID -1":             (&timer.LocalClient{Queue: queue, PID: -1}).Acquire("a", hour()),
		"signal 65":          (&timer.LocalClient{Queue: queue, Signal: 65}).Acquire("a", hour()),
		"signal 200":         (&timer.FileClient{Path: "/none", Signal: 200}).Acquire("a", hour()),
		"no expiration":      (&timer.LocalClient{Queue: queue}).Acquire("a", time.Time{}),
		"fifo: server is":    fifo,
		"socket: server is":  socket,
		"Config.Reap":        (&timer.Expiry{PID: 1, Signal: 9}).Kill(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Without a scope each call of Expires has its own.
func TestExpires(t *testing.T) {
	var q timer.LocalQueue
	client := &timer.LocalClient{Queue: &q}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			release, err := timer.Expires(client, time.Hour, "")
			if err != nil {
				t.Error(err)
			}
			defer release()
			if err := release(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	live := map[string]bool{}
	all := q.Get(t.Context(), 20)
	for _, r := range all {
		if !strings.Contains(r.ScopeID, "local_linux_test.go#") || r.PID != os.Getpid() || r.IsRelease() != live[r.ScopeID] {
			t.Errorf("%v, when it lives: %v", r, live[r.ScopeID])
		}
		live[r.ScopeID] = true
	}
	if len(live) != 10 || q.Size() > 0 {
		t.Errorf("%d scopes, and %d more requests", len(live), q.Size())
	}
	if _, err := timer.Expires(&timer.FileClient{Path: "/nowhere/fifo", Signal: 99}, time.Hour, "a"); err == nil {
		t.Error("no error")
	}
}
