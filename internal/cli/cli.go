// Package cli is muster's command line: it turns arguments and environment into
// a launch.Config and runs it. How the arguments are read is dictated by
// Python's argparse, because any torchrun command line must work unchanged.
package cli

import (
	"context"
	"fmt"
	"os"
)

// Run runs the program named args[0] and returns its exit status. It is what
// main calls; nothing in it ends the process.
func Run(ctx context.Context, args []string, stdin, stdout, stderr *os.File) int {
	fmt.Fprintln(stderr, "muster: nothing to run")
	return exitUsage
}

// Exit statuses of the command line itself.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)
