package server_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

func TestSeat(t *testing.T) {
	hosts := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")}
	round := func(number, rank int) server.Message {
		return server.Message{Type: server.Round, Round: number, Rank: rank, Assignment: server.Assignment{WorldSize: 2}}
	}
	change := func(number int, kind rendezvous.ChangeKind) server.Message {
		return server.Message{Type: server.Change, Round: number, Kind: kind, Rank: 1}
	}
	rank0 := round(1, 0)
	rank0.NumHosts = 2
	published := round(1, 1)
	published.Published = true
	for _, tt := range []struct {
		name string
		said []server.Message
		want []server.Step
	}{
		{"a round and where to meet", []server.Message{round(1, 1), {Type: server.Master, Round: 1}}, []server.Step{server.Await, server.Begin}},
		{"where another round meets", []server.Message{round(1, 1), {Type: server.Master, Round: 0}}, []server.Step{server.Await, server.Await}},
		{"where to meet before the round", []server.Message{{Type: server.Master, Round: 1}}, []server.Step{server.Await}},
		{"rank 0", []server.Message{{Type: server.Hosts, Hosts: hosts}, rank0}, []server.Step{server.Await, server.OpenStore}},
		{"rank 0 is an agent of PyTorch", []server.Message{published}, []server.Step{server.FindStore}},
		{"it breaks up before it begins", []server.Message{round(1, 1), change(1, rendezvous.NodeLost)}, []server.Step{server.Await, server.JoinAgain}},
		{"another has broken up", []server.Message{round(1, 1), change(0, rendezvous.NodeLost)}, []server.Step{server.Await, server.Await}},
		{"dropped", []server.Message{round(1, 1), change(0, rendezvous.Evicted)}, []server.Step{server.Await, server.JoinAgain}},
		{"dropped without a round", []server.Message{change(0, rendezvous.Evicted)}, []server.Step{server.Await}},
		{"a spare comes in", []server.Message{{Type: server.Spare, Redundant: true}, {Type: server.Spare}, round(1, 1)}, []server.Step{server.BeSpare, server.BeNoSpare, server.Await}},
		{"the end", []server.Message{{Type: server.Closed}}, []server.Step{server.EndClosed}},
		{"the end of a spare", []server.Message{{Type: server.Closed, Redundant: true}}, []server.Step{server.EndUnneeded}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var part server.Participation
			part.Join()
			for i, m := range tt.said {
				if got := part.Meet(&m); got != tt.want[i] {
					t.Errorf("after %q: step %d, want %d", m.Type, got, tt.want[i])
				}
				if evicted := m.Kind == rendezvous.Evicted; part.Evicted != evicted {
					t.Errorf("after %q: evicted is %v", m.Type, part.Evicted)
				}
			}
			if last := tt.said[len(tt.said)-1]; last.NumHosts > 0 && !slices.Equal(part.Hosts, hosts) {
				t.Errorf("hosts %v, want %v", part.Hosts, hosts)
			}
		})
	}
}
