package process_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
)

// Files of the program's own for the output of its workers.
type files []*os.File

func (f files) Sink(localRank int) logs.Sink {
	return logs.Sink{Stdout: f[localRank], Stderr: os.Stderr, StdoutPath: f[localRank].Name()}
}

func (files) Started() error { return nil }

func ExampleLogs() {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	out, err := os.Create(filepath.Join(dir, "worker0"))
	if err != nil {
		panic(err)
	}
	defer out.Close()
	var own process.Logs = files{out}
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	g, err := s.Start(process.Config{
		Entrypoint: "/bin/sh", Args: map[int][]string{0: {"-c", "echo hello"}}, Envs: map[int]map[string]string{0: nil}, Logs: own,
	})
	if err != nil {
		panic(err)
	}
	var result *process.Result
	result, err = g.Wait(context.Background())
	text, _ := os.ReadFile(result.Stdouts[0])
	fmt.Printf("%s%v %v\n", text, result.IsFailed(), err)
	// Output:
	// hello
	// false <nil>
}

// The cause of a context that NotifyContext made.
func ExampleSignalError() {
	ctx, _, stop := process.NotifyContext(context.Background(), slog.New(slog.DiscardHandler), syscall.SIGUSR1)
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	<-ctx.Done()
	if e, ok := errors.AsType[*process.SignalError](context.Cause(ctx)); ok {
		fmt.Println(e.Signal == syscall.SIGUSR1, e)
	}
	// Output: true received signal SIGUSR1 (10)
}
