package etcd_test

import (
	"context"
	"fmt"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/etcd"
)

// Agents that a cluster of etcd elects, with a user. The program muster-quorum, which speaks to
// etcd, has to be beside this one or in PATH.
func Example() {
	spec := rendezvous.Spec{RunID: "job7", Endpoint: "etcd1:2379,etcd2:2379,etcd3:2379", MinNodes: 2, MaxNodes: 3, LocalWorldSize: 8}
	spec.Settings.Etcd.User, spec.Settings.Etcd.PasswordFile = "muster", "/run/secrets/etcd"
	h, err := etcd.New(spec)
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
