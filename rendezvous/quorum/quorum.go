// Package quorum is the rendezvous backend of the same name: an election as by etcd,
// with members that the agents of the named hosts run themselves. There is nothing to
// install, and the job outlives any host as long as most of the named ones are up.
package quorum

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/election"
	"github.com/muster-run/muster/rendezvous/internal/node"
)

// DefaultPort is that of hosts which name none. Their members talk to each other
// on the port after it.
const DefaultPort = 29400

// New returns the rendezvous of a job whose agents are elected by the hosts of the
// endpoint: one, three or five with commas between them. If one of them is this host it runs
// a member. New opens nothing; Next does.
func New(spec rendezvous.Spec) (rendezvous.Handler, error) {
	members, err := Members(spec.Endpoint)
	if err != nil {
		return nil, err
	}
	s := &spec.Settings
	if spec.LocalAddr == "" { // else the stores must be open at that address
		s.Bind = cmp.Or(s.Bind, loopback(members))
	}
	if s.Token == "" && s.TokenFile != "" {
		if s.Token, err = auth.ReadSecret("token_file", s.TokenFile); err != nil {
			return nil, err
		}
	}
	elect := func(ctx context.Context) election.Config {
		how := election.Config{Elect: pipe.Elect{Endpoints: members, OwnMembers: true, CACert: s.TLS.CACert,
			Cert: s.TLS.Cert, Key: s.TLS.Key, Token: s.Token}}
		if name, ok := member(ctx, members); ok {
			how.Member = &pipe.Serve{Name: name, Members: members, Bind: s.Bind, Allow: node.Allowed(s), DataDir: s.DataDir}
		}
		return how
	}
	return node.Elected("quorum", spec, members, elect)
}

// Members takes an endpoint apart into the hosts that elect, each with its port.
func Members(endpoint string) ([]string, error) {
	members, err := hostport.SplitList(endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	if n := len(members); n != 1 && n != 3 && n != 5 {
		return nil, fmt.Errorf(
			"rendezvous endpoint %q names %d hosts: want 3 or 5, of which 1 or 2 may be lost (or 1, which may not)", endpoint, n)
	}
	for _, m := range members {
		if strings.Contains(m, "://") {
			return nil, fmt.Errorf("rendezvous endpoint %q: want names of hosts, not URLs", m)
		}
	}
	return members, nil
}

// loopback is the only member's address if no other host can reach it: the stores and the
// member listen there alone. It is empty for all other members.
func loopback(members []string) string {
	switch host, _, _ := net.SplitHostPort(members[0]); {
	case len(members) > 1:
		return ""
	case host == "localhost" || host == "127.0.0.1":
		return "127.0.0.1"
	case host == "::1":
		return host
	}
	return ""
}

// member returns which of the members is this host's.
func member(ctx context.Context, members []string) (string, bool) {
	for _, m := range members {
		host, _, err := net.SplitHostPort(m)
		if err == nil && hostport.IsThisHost(ctx, host) {
			return m, true
		}
	}
	return "", false
}
