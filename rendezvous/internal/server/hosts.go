package server

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/wire/hostport"
)

// Limits of what is sent about hosts.
const (
	mostOfHost  = 64      // addresses of one
	mostOfRound = 1 << 14 // of all, so that they fit into the queue of a session
	hostsAtOnce = 1000    // in one message
)

// Join tells the rendezvous that this node takes part in the next round.
func (c *Client) Join() error {
	m := &Message{Type: Join, Hosts: ownHosts()}
	if tcp, ok := c.conn.RemoteAddr().(*net.TCPAddr); ok {
		m.Addr = tcp.IP.String()
	}
	return c.Send(m)
}

// ownHosts are the addresses from which this host may connect to another, or nil if they
// are too many. Where the system changes its IPv6 addresses now and then it is their networks.
func ownHosts() (hosts []netip.Prefix) {
	changes := temporary()
	for _, p := range hostport.Local() {
		ip := p.Addr()
		if changes && ip.Is6() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() {
			p = netip.PrefixFrom(ip, 64).Masked()
		}
		if !ip.IsLoopback() && !slices.Contains(hosts, p) {
			hosts = append(hosts, p)
		}
	}
	if len(hosts) > mostOfHost {
		return nil
	}
	return hosts
}

// temporary reports whether this host has IPv6 addresses for some hours or days.
func temporary() bool {
	const temporary = 1 // IFA_F_TEMPORARY of linux/if_addr.h
	text, _ := os.ReadFile("/proc/net/if_inet6")
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 6 {
			if flags, err := strconv.ParseUint(string(f[4]), 16, 32); err == nil && flags&temporary != 0 {
				return true
			}
		}
	}
	return false
}

// warnOfTwins warns of hosts with several agents in a round of several hosts, as where srun starts two tasks
// on each, and names the hosts that are left out. It says the same once, and again at the end.
func (r *Rendezvous) warnOfTwins() {
	type machine struct{ boot, host string }
	agents := map[machine]int{}
	for n, s := range r.sessions.of {
		_, takesPart := r.state.Participants[n]
		agents[machine{s.hello.Boot, s.hello.Host}] += map[bool]int{true: 1}[takesPart]
	}
	var twins, out []string
	for m, n := range agents {
		if n > 1 && m.boot != "" {
			twins = append(twins, m.host)
		} else if n == 0 {
			out = append(out, m.host)
		}
	}
	if len(agents) == 1 {
		twins = nil
	}
	slices.Sort(twins)
	slices.Sort(out)
	r.last.several = strings.Join(twins[:min(len(twins), mostNamed)], ",")
	names := fmt.Sprint(twins, out)
	if len(twins) > 0 && names != r.last.twins {
		r.last.twins = names
		r.log.Warn("rendezvous: hosts have several agents in the round, each of which counts as a host; start one on each; with srun, one task for each host",
			"run_id", r.runID, "hosts", twins[:min(len(twins), mostNamed)],
			"left_out", out[:min(len(out), mostNamed)])
	}
}

// sendHosts tells rank 0 from which addresses the workers of a round come, and returns their
// number: none if that is not known of every node.
func (r *Rendezvous) sendHosts(to *session, nodes []*session) int {
	var hosts []netip.Prefix
	for _, s := range nodes {
		if !s.known() {
			r.log.Info(
				"rendezvous: the workers' store is open to all: it is not known from which addresses a host's workers come",
				"run_id", r.runID, "node", r.name(s.node))
			return 0
		}
		hosts = append(hosts, s.hosts...)
	}
	slices.SortFunc(hosts, netip.Prefix.Compare)
	hosts = slices.Compact(hosts)
	if len(hosts) > mostOfRound {
		return 0
	}
	for part := range slices.Chunk(hosts, hostsAtOnce) {
		r.send(to, &Message{Type: Hosts, Hosts: part})
	}
	return len(hosts)
}

// known reports whether a node has said what its host's addresses are, and no address is
// translated between it and the server: others would see its workers come from elsewhere.
func (s *session) known() bool {
	if len(s.hosts) == 0 || len(s.hosts) > mostOfHost {
		return false
	}
	for _, p := range s.hosts {
		if !p.IsValid() || p.Addr().Is4() && p.Bits() < 32 || p.Addr().Is6() && p.Bits() < 64 {
			return false
		}
	}
	return s.hello.origin.near || s.dialed == s.hello.origin.reached &&
		slices.ContainsFunc(s.hosts, func(p netip.Prefix) bool { return p.Contains(s.hello.origin.from) })
}
