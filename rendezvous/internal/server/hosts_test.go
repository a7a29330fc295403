package server

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/state"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Where the workers of each node come from is known, or rank 0 hears of none.
func TestHosts(t *testing.T) {
	type node struct {
		from, reached, dialed string // how the rendezvous sees it, by which address of the rendezvous', and what the node says of that
		near                  bool
		hosts                 []netip.Prefix
	}
	here := node{near: true, hosts: prefixes("10.0.0.1/32", "172.17.0.1/32")}
	many := make([]netip.Prefix, mostOfHost)
	for i := range many {
		many[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 32)
	}
	for _, tt := range []struct {
		name  string
		other node
		want  int // addresses of both; 0: not known
	}{
		{"known", node{"10.0.0.2", "10.0.0.1", "10.0.0.1", false, prefixes("10.0.0.2/32", "172.17.0.1/32")}, 3},
		{"on the same host", here, 2},
		{"IPv6 that changes", node{"fd77::1:2", "fd77::1", "fd77::1", false, prefixes("fd77::/64")}, 3},
		{"many addresses", node{"10.1.0.9", "10.0.0.1", "10.0.0.1", false, many}, mostOfHost + 2},
		{"its address is translated", node{"192.0.2.1", "10.0.0.1", "10.0.0.1", false, prefixes("10.0.0.2/32")}, 0},
		{"the server's address is translated", node{"10.0.0.2", "10.0.0.1", "192.0.2.1", false, prefixes("10.0.0.2/32")}, 0},
		{"another release", node{"10.0.0.2", "10.0.0.1", "", false, nil}, 0},
		{"too many", node{"10.1.0.9", "10.0.0.1", "10.0.0.1", false, append(prefixes("10.2.0.0/32"), many...)}, 0},
		{"everything", node{"10.0.0.2", "10.0.0.1", "10.0.0.1", false, prefixes("0.0.0.0/0")}, 0},
		{"all of IPv6", node{"fd77::2", "fd77::1", "fd77::1", false, prefixes("::/0")}, 0},
		{"none", node{"10.0.0.2", "10.0.0.1", "10.0.0.1", false, make([]netip.Prefix, 1)}, 0},
	} {
		r, now := NewRendezvous("job", slog.New(slog.DiscardHandler)), time.Unix(1e9, 0)
		for i, n := range []node{here, tt.other} {
			hello := &Message{
				Type: Hello, origin: origin{reached: n.reached, near: n.near},
				Greeting: Greeting{
					Version: Version, RunID: "job", Node: &state.Node{Addr: fmt.Sprint(i), PID: 1}, LocalWorldSize: 1,
					MinNodes: 2, MaxNodes: 2, KeepAlive: time.Second, KeepAliveLimit: time.Minute,
				},
			}
			hello.origin.from, _ = netip.ParseAddr(n.from)
			r.Receive(now, ID(i), hello)
			r.Receive(now, ID(i), &Message{Type: Join, Hosts: n.hosts, Addr: n.dialed})
		}
		said, got := -1, 0
		for _, e := range r.Out() {
			switch {
			case e.Msg.Type == Hosts && e.To == 0 && said < 0:
				got += len(e.Msg.Hosts)
			case e.Msg.Type == Hosts:
				t.Errorf("%s: told %d, or too late", tt.name, e.To)
			case e.Msg.Type == Round && e.To == 0:
				said = e.Msg.NumHosts
			}
		}
		if said != tt.want || got != tt.want {
			t.Errorf("%s: told %d addresses and sent %d, want %d", tt.name, said, got, tt.want)
		}
	}
}

// The addresses of a big round go in parts that are messages.
func TestHostsOfManyNodes(t *testing.T) {
	r := NewRendezvous("job", slog.New(slog.DiscardHandler))
	var nodes []*session
	for i := range 200 {
		s := &session{hello: &Message{origin: origin{near: true}}}
		for j := range mostOfHost {
			s.hosts = append(s.hosts, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x77, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, byte(i), byte(j)}), 128))
		}
		nodes = append(nodes, s)
	}
	if n := r.sendHosts(nodes[0], nodes); n != 200*mostOfHost {
		t.Errorf("%d addresses", n)
	}
	total := 0
	for _, e := range r.Out() {
		n := len(e.Msg.Append(nil))
		if total += n; n > MaxMessage {
			t.Errorf("a message of %d bytes", n)
		}
	}
	if total > mostQueued*3/4 {
		t.Errorf("%d bytes, of %d that may wait for a session", total, mostQueued)
	}
	if n := r.sendHosts(nodes[0], append(nodes, nodes...)); n != 200*mostOfHost {
		t.Errorf("%d addresses, each twice", n)
	}
}

func TestOwnHosts(t *testing.T) {
	for _, p := range ownHosts() {
		if p.Addr().IsLoopback() || !p.IsValid() {
			t.Errorf("%v", p)
		}
	}
}
