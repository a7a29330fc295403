package logs_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
)

// The output of a group of two workers, in files and on the console.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	quiet := slog.New(slog.DiscardHandler)
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: quiet})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	run, err := logs.New(logs.Config{
		Dir: dir, RunID: "job7", Redirects: logs.StdSpec{All: logs.StdErr}, Tee: logs.StdSpec{All: logs.StdOut},
		LocalRanksFilter: []int{1}, Logger: quiet,
	})
	if err != nil {
		panic(err)
	}
	defer run.Close(true)
	attempt, err := run.Attempt(0, []logs.Worker{{LocalRank: 0, Role: "trainer"}, {LocalRank: 1, Rank: 1, Role: "trainer"}})
	if err != nil {
		panic(err)
	}
	g, err := s.Start(process.Config{
		Entrypoint: "/bin/sh",
		Args:       map[int][]string{0: {"-c", "echo zero; echo problem >&2"}, 1: {"-c", "echo one"}},
		Envs:       map[int]map[string]string{0: nil, 1: nil},
		Logs:       attempt,
	})
	if err == nil {
		_, err = g.Wait(context.Background())
	}
	if err != nil {
		panic(err)
	}
	if _, err := attempt.Finish(context.Background()); err != nil {
		panic(err)
	}
	text, err := os.ReadFile(attempt.Sink(0).StderrPath)
	fmt.Printf("rank 0 wrote to stderr: %s%v\n", text, err)
	// Output:
	// [trainer1]:one
	// rank 0 wrote to stderr: problem
	// <nil>
}

func ExampleParseStd() {
	spec, _ := logs.ParseStd("0:3,10:1")
	fmt.Println(spec.For(0), spec.For(1), spec.For(10))
	// Output: ALL NONE OUT
}
