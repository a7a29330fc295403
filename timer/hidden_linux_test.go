package timer

import (
	"fmt"
	"log/slog"
	"os/exec"
	"testing"
	"time"
)

// child starts a process that waits to be killed.
func child(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func served(t *testing.T, owns func(pid int) bool) *Server {
	t.Helper()
	s, err := NewServer(Config{Owns: owns, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	go s.Run(t.Context())
	return s
}

// Timers without a signal hide none with one, however many there are.
func TestSignalBehindManyTimers(t *testing.T) {
	cmd := child(t)
	s := served(t, nil)
	past := seconds(time.Now().Add(-time.Second))
	requests := make([]Request, maxReported+1)
	for i := range requests {
		requests[i] = Request{PID: cmd.Process.Pid, ScopeID: fmt.Sprint(i), ExpirationTime: fromSeconds(past + float64(i)*1e-6)}
	}
	requests[maxReported].Signal = 9
	s.Register(requests)
	_ = cmd.Wait()
}

// A deadline holds while the next process of the same batch is looked up.
func TestDeadlineDuringLookUp(t *testing.T) {
	cmd, other, done := child(t), child(t), make(chan struct{})
	s := served(t, func(pid int) bool {
		if pid == other.Process.Pid {
			<-done
		}
		return true
	})
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		s.Register([]Request{
			{PID: cmd.Process.Pid, ScopeID: "a", ExpirationTime: time.Now(), Signal: 9},
			{PID: other.Process.Pid, ScopeID: "b", ExpirationTime: time.Now().Add(time.Hour), Signal: 9},
		})
	}()
	_ = cmd.Wait()
	close(done)
	<-registered
}
