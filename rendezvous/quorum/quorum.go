// Package quorum is the rendezvous backend of the same name: etcd, with members
// that the agents of the named hosts run themselves. There is nothing to install,
// and the job outlives any host as long as most of the named ones are up.
package quorum

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/election"
	"github.com/muster-run/muster/rendezvous/etcd"
)

// DefaultPort is that of hosts which name none. Their members talk to each other
// on the port after it.
const DefaultPort = 29400

// New returns the rendezvous of a job whose agents are elected by the hosts in
// cfg.Endpoint: one, three or five of them with commas between. If one of them is
// this host it runs a member. cfg is as for c10d.New. Next opens it.
func New(cfg c10d.Config) (rendezvous.Handler, error) {
	members, err := Members(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	elect := func(ctx context.Context) election.Config {
		m, ok := member(ctx, members)
		if !ok {
			return election.Config{Endpoints: members}
		}
		guard := cfg.ServerConfig("", 0)
		return election.Config{Member: &election.Member{Name: m, Members: members, Bind: cfg.Settings.Bind, Allow: guard.Allow, DataDir: cfg.Settings.DataDir}}
	}
	return etcd.NewElected(cfg, "quorum", elect, members)
}

// Members takes an endpoint apart into the hosts that elect, each with its port.
func Members(endpoint string) ([]string, error) {
	members, err := etcd.SplitEndpoints(endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	if n := len(members); n != 1 && n != 3 && n != 5 {
		return nil, fmt.Errorf("rendezvous endpoint %q names %d hosts: want 3 or 5, of which 1 or 2 may be lost (or 1, which may not)", endpoint, n)
	}
	for _, m := range members {
		if strings.Contains(m, "://") {
			return nil, fmt.Errorf("rendezvous endpoint %q: want names of hosts, not URLs", m)
		}
	}
	return members, nil
}

// member returns which of the members is this host's.
func member(ctx context.Context, members []string) (string, bool) {
	for _, m := range members {
		host, _, err := net.SplitHostPort(m)
		if err == nil && rendezvous.IsThisHost(ctx, host) {
			return m, true
		}
	}
	return "", false
}
