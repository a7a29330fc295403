package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// An agent takes the highest count of restarts that it hears of, and raises that of the store, which is another
// one where the host that held it is lost.
func TestLearnRestarts(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		own, round, stored, want int
	}{
		{"the store has all of them", 0, 0, 2, 2},
		{"the store is new, and this agent knows", 2, 0, 0, 2},
		{"the store is new, and others know", 0, 2, 0, 2},
		{"others have counted since", 1, 1, 3, 3},
		{"there were none", 0, 0, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &Agent{cfg: Config{PeerTimeout: time.Minute}, log: slog.New(slog.DiscardHandler), restarts: restarts{used: tt.own}}
			at := bareAttempt(t.Context(), a)
			defer at.close()
			at.round = &rendezvous.Info{Round: 1, WorldSize: 2, JobStore: store.NewMemory(), Restarts: tt.round}
			if _, err := at.round.JobStore.Add(t.Context(), peers.RestartsKey, int64(tt.stored)); err != nil {
				t.Fatal(err)
			}
			a.learnRestarts(t.Context(), at)
			stored, err := at.round.JobStore.Add(t.Context(), peers.RestartsKey, 0)
			if a.restarts.used != tt.want || stored != int64(tt.want) || err != nil {
				t.Errorf("the agent has %d and the store %d (%v), want %d", a.restarts.used, stored, err, tt.want)
			}
		})
	}
}
