package logs_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/muster-run/muster/logs"
)

// One start of the group: a program that starts its workers without package process gives them
// the files of their Sinks.
func ExampleAttempt() {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	var run *logs.Run
	run, err = logs.New(logs.Config{Dir: dir, Redirects: logs.StdSpec{All: logs.StdOut}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer run.Close(true)
	var attempt *logs.Attempt
	attempt, err = run.Attempt(0, []logs.Worker{{Role: "trainer"}})
	if err != nil {
		panic(err)
	}
	var sink logs.Sink = attempt.Sink(0)
	fmt.Fprintln(sink.Stdout, "what the worker prints")
	fmt.Println(attempt.Started())
	_, err = attempt.Finish(context.Background())
	text, _ := os.ReadFile(sink.StdoutPath)
	fmt.Printf("%s%v\n", text, err)
	// Output:
	// <nil>
	// what the worker prints
	// <nil>
}

// Lines of several workers, whole and with a prefix.
func ExamplePrinter() {
	var p *logs.Printer = logs.NewPrinter(os.Stdout, logs.PrinterConfig{
		Prefix: func(ranks string, stderr bool) string { return "[" + ranks + "] " },
	})
	_ = p.Put(0, false, "attempt_0", false, []byte("step 1\n"))
	_ = p.Put(1, false, "attempt_0", false, []byte("step 1\n"))
	_ = p.Put(0, false, "attempt_0", false, []byte("step 2\n"))
	fmt.Println(p.Close())
	// Output:
	// [0] step 1
	// [1] step 1
	// [0] step 2
	// <nil>
}

func ExampleStd() {
	for _, s := range []logs.Std{0, logs.StdOut, logs.StdErr, logs.StdAll} {
		fmt.Print(s, " ")
	}
	// Output: NONE OUT ERR ALL
}
