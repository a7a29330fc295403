// Command muster-quorum elects, through etcd, the agent that holds a run's
// rendezvous, and runs a member of etcd for runs that have none. muster starts
// it; apart from muster it keeps what etcd costs at a start.
package main

import (
	"context"
	"os"

	"github.com/muster-run/muster/cmd/muster-quorum/internal/quorum"
)

func main() {
	os.Exit(quorum.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
