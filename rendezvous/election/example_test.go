package election_test

import (
	"context"
	"fmt"

	"github.com/muster-run/muster/rendezvous/election"
)

// An agent serves the rendezvous while it leads, and joins the leader's otherwise.
func Example() {
	serve := func(lost <-chan struct{}) bool { <-lost; return false } // true when the job has ended
	join := func(addr string, lost <-chan struct{}) bool { <-lost; return false }

	ctx := context.Background()
	e, err := election.Start(ctx, election.Config{
		RunID:     "job7",
		Addr:      "10.0.0.1:29400",
		Endpoints: []string{"etcd0:2379", "etcd1:2379", "etcd2:2379"},
		OnWaiting: func(text string) { fmt.Println("waiting:", text) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for done := false; !done; {
		leader, err := e.Leader(ctx)
		if err != nil {
			fmt.Println(err)
			break
		}
		if lost := e.Lost(leader.Term); leader.Mine {
			done = serve(lost)
		} else {
			done = join(leader.Addr, lost)
		}
	}
	_ = e.Close(ctx, true)
}
