package process_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/muster-run/muster/process"
)

// Two workers run a program; the second fails and the first is stopped.
func ExampleSupervisor() {
	s, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	g, err := s.Start(process.Config{
		Name:       "trainer",
		Entrypoint: "sh",
		Args:       map[int][]string{0: {"-c", "exec sleep 1000"}, 1: {"-c", "exit $CODE"}},
		Envs:       map[int]map[string]string{0: nil, 1: {"CODE": "3"}},
		Grace:      process.DefaultGrace,
	})
	if err != nil {
		panic(err)
	}
	result, err := g.Wait(context.Background())
	if err != nil {
		panic(err)
	}
	for rank := range 2 {
		exit := result.Exits[rank]
		fmt.Printf("%d: code %d, stopped by %v\n", rank, exit.Code, exit.StoppedBy)
	}
	// Output:
	// 0: code -15, stopped by terminated
	// 1: code 3, stopped by signal 0
}
