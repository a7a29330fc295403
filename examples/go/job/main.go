// Command job runs a program as two workers on this host, restarts them once if one fails, and says why the
// job failed:
//
//	job python3 -u train.py
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/process"
)

func main() {
	process.GuardMain() // first of all: the guard is this program, started again
	if len(os.Args) < 2 {
		log.Fatal("usage: job PROGRAM [ARGUMENT ...]")
	}
	cfg := launch.Default()
	cfg.NprocPerNode, cfg.MaxRestarts = 2, 1
	cfg.Workers.Entrypoint, cfg.Workers.Args = os.Args[1], os.Args[2:]
	result, err := launch.Run(context.Background(), cfg)
	if err != nil {
		log.Fatal(err) // such as a program that does not exist
	}
	if !result.IsFailed() {
		fmt.Println("succeeded after", result.Restarts, "restarts")
		return
	}
	fmt.Println("failed after", result.Restarts, "restarts:", result.Err())
	if f, ok := errors.AsType[*failure.ProcessFailure](result.Err()); ok {
		fmt.Printf("rank %d, exit code %d, class %q\n%s\n", f.Rank, f.ExitCode, f.Class(), f.Traceback)
	}
	os.Exit(1)
}
