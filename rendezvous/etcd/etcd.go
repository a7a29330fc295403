// Package etcd is the rendezvous backend of the same name, for jobs that outlive
// any host. An etcd cluster says which agent holds the rendezvous (package
// election); that agent holds it as c10d's does, and when it is lost another one
// goes on where it ended.
//
// It speaks etcd's v3 API. TorchElastic's backends etcd and etcd-v2 speak the v2
// API, which etcd 3.6 no longer has; agents of PyTorch cannot take part.
package etcd

import (
	"context"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/internal/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/election"
	"github.com/muster-run/muster/rendezvous/internal/node"
	"github.com/muster-run/muster/store/tcpstore"
)

// DefaultPort is that of endpoints which name none.
const DefaultPort = 2379

// Config says where one job meets.
type Config struct {
	// Spec's Settings have etcd's user and password, and the files for TLS with it.
	rendezvous.Spec
	// Endpoint is a list of etcd's members with commas between them.
	Endpoint string
	// MinNodes and MaxNodes are how many nodes the job may have.
	MinNodes, MaxNodes int
	// LocalAddr is this host's address in the eyes of the others. Default that of
	// the interface that reaches the endpoint.
	LocalAddr string
	// PrivateStore makes worker rank 0 host the workers' store on a port that
	// is held free for it (TORCH_DISABLE_SHARE_RDZV_TCP_STORE).
	PrivateStore bool
	// Conns bounds the connections to the stores that this agent holds; nil: nothing does.
	Conns *tcpstore.Limit
}

// New returns the rendezvous of a job whose agents are elected by an etcd cluster. It
// opens nothing; Next does.
func New(cfg Config) (rendezvous.Handler, error) {
	endpoints, err := hostport.SplitList(cfg.Endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	s := cfg.Settings
	if s.Password == "" && s.PasswordFile != "" {
		if s.Password, err = auth.ReadSecret("password_file", s.PasswordFile); err != nil {
			return nil, err
		}
	}
	elect := func(context.Context) election.Config {
		return election.Config{Endpoints: endpoints, CACert: s.CACert, Cert: s.Cert, Key: s.Key, User: s.User, Password: s.Password}
	}
	if agents := &cfg.Settings; s.CACert == "" || s.Cert == "" {
		agents.CACert, agents.Cert, agents.Key = "", "", "" // they say only how to know etcd, or how to be known there
	}
	return node.Elected(node.Config{
		Spec: cfg.Spec, Backend: "etcd", MinNodes: cfg.MinNodes, MaxNodes: cfg.MaxNodes,
		LocalAddr: cfg.LocalAddr, PrivateStore: cfg.PrivateStore, Conns: cfg.Conns,
	}, endpoints, elect)
}
