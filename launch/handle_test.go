package launch

import (
	"log/slog"
	"syscall"
	"testing"
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
		"Ctrl-C, twice":           {syscall.SIGINT, syscall.SIGINT, time.Millisecond, false},
	}
	for name, tt := range tests {
		if got := isEcho(tt.first, tt.second, tt.after); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// The echo of a signal does not cut the grace short; another signal does.
func TestEchoKeepsTheGrace(t *testing.T) {
	ctx, hurry, stop := handleSignals(t.Context(), []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2}, slog.New(slog.DiscardHandler))
	defer stop()
	send := func(sig syscall.Signal) {
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	send(syscall.SIGUSR1)
	<-ctx.Done()
	send(syscall.SIGUSR1)
	select {
	case <-hurry:
		t.Error("the echo counts")
	case <-time.After(50 * time.Millisecond):
	}
	send(syscall.SIGUSR2)
	select {
	case <-hurry:
	case <-time.After(10 * time.Second):
		t.Error("another signal does not count")
	}
}
