// Package etcd is the rendezvous backend of the same name, for jobs that outlive
// any host. An etcd cluster says which agent holds the rendezvous; that agent holds it
// as c10d does, and when it is lost another one continues where it ended.
//
// It speaks etcd's v3 API. TorchElastic's backends etcd and etcd-v2 speak the v2
// API, which etcd 3.6 no longer has; agents of PyTorch cannot take part.
package etcd

import (
	"context"

	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/internal/wire/pipe"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/election"
	"github.com/muster-run/muster/rendezvous/internal/node"
)

// DefaultPort is that of endpoints which name none.
const DefaultPort = 2379

// New returns the rendezvous of a job whose agents are elected by an etcd cluster. It opens
// nothing; Next does. The endpoint is a list of etcd's members with commas between them.
// Settings have etcd's user and password, and the files for TLS with it.
func New(spec rendezvous.Spec) (rendezvous.Handler, error) {
	endpoints, err := hostport.SplitList(spec.Endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	tls, user := spec.Settings.TLS, spec.Settings.Etcd
	if user.Password == "" && user.PasswordFile != "" {
		if user.Password, err = auth.ReadSecret("password_file", user.PasswordFile); err != nil {
			return nil, err
		}
	}
	elect := func(context.Context) election.Config {
		return election.Config{Elect: pipe.Elect{Endpoints: endpoints, CACert: tls.CACert, Cert: tls.Cert, Key: tls.Key,
			User: user.User, Password: user.Password}}
	}
	if agents := &spec.Settings.TLS; tls.CACert == "" || tls.Cert == "" {
		agents.CACert, agents.Cert, agents.Key = "", "", "" // they say only how to know etcd, or how to be known there
	}
	return node.Elected("etcd", spec, endpoints, elect)
}
