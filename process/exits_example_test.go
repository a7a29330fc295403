package process_test

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/process"
)

// Two workers, of which one fails: its peer is stopped, and the Exit says why.
func ExampleExit_Observation() {
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	g, err := s.Start(process.Config{
		Entrypoint: "/bin/sh",
		Args:       map[int][]string{0: {"-c", "exec sleep 60"}, 1: {"-c", "exit 3"}},
		Envs:       map[int]map[string]string{0: nil, 1: nil},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	first := <-g.Failed() // the other one is being stopped
	result, err := g.Wait(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("first:", first.LocalRank, "- stopped by:", result.Exits[0].StoppedBy)
	fmt.Println(failure.New(first.Observation()).Cause)
	// Output:
	// first: 1 - stopped by: terminated
	// exit code 3
}

// A group is waited for, for a time, and stopped with a signal and a grace.
func ExampleGroup_Close() {
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	// Ctrl-C and SIGTERM end ctx; the second one closes hurry.
	ctx, hurry, stop := process.NotifyContext(context.Background(), nil, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	g, err := s.Start(process.Config{
		Entrypoint: "/bin/sleep",
		Args:       map[int][]string{0: {"60"}},
		Envs:       map[int]map[string]string{0: nil},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		select {
		case <-hurry:
			g.Kill()
		case <-g.Done():
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = g.Wait(ctx)
	fmt.Println(err)
	g.Close(syscall.SIGTERM, process.DefaultGrace)
	result, err := g.Wait(context.Background())
	fmt.Println(len(g.PIDs()), result.Exits[0].Code, err)
	// Output:
	// context deadline exceeded
	// 1 -15 <nil>
}
