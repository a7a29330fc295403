package timer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/muster-run/muster/timer"
)

func BenchmarkParse(b *testing.B) {
	line := []byte(`{"version": 1, "pid": 27237, "scope_id": "/opt/train/loop.py#137", "expiration_time": 1795234300.6803458, "signal": 9}`)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := timer.ParseRequest(line); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFIFO counts the requests that a server takes, with one writer.
func BenchmarkFIFO(b *testing.B) {
	for _, perWrite := range []int{1, 40} {
		b.Run(fmt.Sprintf("lines=%d", perWrite), func(b *testing.B) {
			s, err := timer.NewServer(timer.Config{})
			if err != nil {
				b.Fatal(err)
			}
			f, err := timer.ListenFIFO(s, filepath.Join(b.TempDir(), "fifo"))
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 2)
			go func() { done <- s.Run(ctx) }()
			go func() { done <- f.Serve(ctx) }()
			file, err := os.OpenFile(f.Path(), os.O_WRONLY, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			var text []byte
			at := float64(time.Now().Unix()) + 3600.6803458
			for i := range perWrite {
				r := timer.Request{PID: os.Getpid(), ScopeID: fmt.Sprint("train.py#", i/2), ExpirationTime: timer.FromSeconds(at + float64(i)), Signal: 9}
				if i%2 == 1 {
					r.ExpirationTime, r.Signal = time.Time{}, 0
				}
				text = append(r.AppendJSON(text), '\n')
			}
			sent := uint64(0)
			for b.Loop() {
				if _, err := file.Write(text); err != nil {
					b.Fatal(err)
				}
				sent += uint64(perWrite)
			}
			for s.Stats().FIFO.Lines < sent {
				runtime.Gosched()
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "requests/s")
			cancel()
			if err := errors.Join(<-done, <-done); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkRegister moves and releases timers among many.
func BenchmarkRegister(b *testing.B) {
	for _, live := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			s, err := timer.NewServer(timer.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			far := float64(time.Now().Unix() + 3600)
			requests := make([]timer.Request, live)
			for i := range requests {
				requests[i] = timer.Request{PID: os.Getpid(), ScopeID: fmt.Sprint("train.py#", i), ExpirationTime: timer.FromSeconds(far + float64(i)), Signal: 9}
			}
			if err := s.Register(requests); err != nil {
				b.Fatal(err)
			}
			one := make([]timer.Request, 1)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i = (i + 7919) % live
				one[0] = requests[i]
				one[0].ExpirationTime = one[0].ExpirationTime.Add(time.Duration(live) * time.Second)
				if err := s.Register(one); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkExpire measures how long it takes from the look at the clock until the
// process of many timers that are due together is reaped.
func BenchmarkExpire(b *testing.B) {
	const n = 100_000
	w := worker(b)
	var reaped time.Time
	s, err := timer.NewServer(timer.Config{
		Logger: slog.New(slog.DiscardHandler),
		Reap:   func(context.Context, *timer.Expiry) error { reaped = time.Now(); return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	requests := make([]timer.Request, n)
	for i := range requests {
		requests[i] = req(w.Process.Pid, fmt.Sprint("train.py#", i), 1e9+float64(i*7919%n), 9)
	}
	var took time.Duration
	for b.Loop() {
		b.StopTimer()
		if err := s.Register(requests); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		begin := time.Now()
		s.Settle()
		took += reaped.Sub(begin)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/reap")
}
