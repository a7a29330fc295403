// Command muster runs a distributed PyTorch job's workers on this host and keeps
// the job alive. Started under the name torchrun it takes torchrun's command line.
package main

import (
	"context"
	"os"

	"github.com/muster-run/muster/cmd/muster/internal/cli"
	"github.com/muster-run/muster/process"
)

func main() {
	process.GuardMain()
	os.Exit(cli.Run(context.Background(), os.Args, os.Stdout, os.Stderr))
}
