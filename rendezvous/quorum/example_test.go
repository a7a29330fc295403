package quorum_test

import (
	"context"
	"fmt"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/quorum"
)

// Agents whose own hosts hold an etcd for the job: any one of the three may be lost. The program
// muster-quorum, which is a member of it, has to be beside this one or in PATH.
func Example() {
	spec := rendezvous.Spec{RunID: "job7", Endpoint: "host1,host2,host3", MinNodes: 2, MaxNodes: 3, LocalWorldSize: 8}
	h, err := quorum.New(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Shutdown(context.Background())
	round, err := h.Next(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("node", round.Rank, "of", round.WorldSize, "at", round.MasterAddr)
}
