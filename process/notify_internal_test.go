package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestIsEcho(t *testing.T) {
	tests := map[string]struct {
		first, second syscall.Signal
		after         time.Duration
		want          bool
	}{
		"Slurm's SIGTERM, twice":  {syscall.SIGTERM, syscall.SIGTERM, 2 * time.Millisecond, true},
		"its early signal, twice": {syscall.SIGUSR1, syscall.SIGUSR1, 2 * time.Millisecond, true},
		"somebody sends it again": {syscall.SIGTERM, syscall.SIGTERM, time.Second, false},
		"another one":             {syscall.SIGUSR1, syscall.SIGTERM, time.Millisecond, false},
		"timeout -s INT":          {syscall.SIGINT, syscall.SIGINT, 2 * time.Millisecond, true},
		"Ctrl-C, twice":           {syscall.SIGINT, syscall.SIGINT, 100 * time.Millisecond, false},
	}
	for name, tt := range tests {
		if got := isEcho(tt.first, tt.second, tt.after); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// The echo of a signal does not cut the grace short; the same one later does.
func TestEchoKeepsTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, quit := make(chan os.Signal), make(chan struct{})
		begin := time.Now()
		type call struct {
			what string
			at   time.Duration
			sig  syscall.Signal
		}
		var calls []call
		note := func(what string) func(syscall.Signal) {
			return func(sig syscall.Signal) { calls = append(calls, call{what, time.Since(begin), sig}) }
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			heed(got, quit, note("stop"), note("cut"))
		}()
		for range 5 { // at 0, 0.3, 0.6, 0.9 and 1.2 s
			got <- syscall.SIGUSR1
			time.Sleep(300 * time.Millisecond)
		}
		got <- syscall.SIGTERM // the third is nothing new
		close(quit)
		<-done
		want := []call{{"stop", 0, syscall.SIGUSR1}, {"cut", 1200 * time.Millisecond, syscall.SIGUSR1}}
		if !slices.Equal(calls, want) {
			t.Errorf("got %v, want %v", calls, want)
		}
	})
}

// timeout(1) sends SIGINT to its child and then to the group, which it is in; a person presses Ctrl-C again.
func TestEchoOfInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, quit, done := make(chan os.Signal), make(chan struct{}), make(chan struct{})
		begin := time.Now()
		var stopped, cut []time.Duration
		go func() {
			defer close(done)
			heed(got, quit, func(syscall.Signal) { stopped = append(stopped, time.Since(begin)) },
				func(syscall.Signal) { cut = append(cut, time.Since(begin)) })
		}()
		for range 5 { // at 0, 40, 80, 120 and 160 ms
			got <- syscall.SIGINT
			time.Sleep(40 * time.Millisecond)
		}
		close(quit)
		<-done
		if !slices.Equal(stopped, []time.Duration{0}) || !slices.Equal(cut, []time.Duration{120 * time.Millisecond}) {
			t.Errorf("stopped at %v, cut short at %v, want 0 s and 120 ms", stopped, cut)
		}
	})
}

// Another signal cuts it short at once.
func TestAnotherSignalCutsTheGrace(t *testing.T) {
	ctx, hurry, stop := NotifyContext(t.Context(), slog.New(slog.DiscardHandler), syscall.SIGUSR1, syscall.SIGUSR2)
	defer stop()
	send := func(sig syscall.Signal) {
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	send(syscall.SIGUSR1)
	<-ctx.Done()
	if sig, ok := errors.AsType[*SignalError](context.Cause(ctx)); !ok || sig.Signal != syscall.SIGUSR1 {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	send(syscall.SIGUSR2)
	<-hurry
}
