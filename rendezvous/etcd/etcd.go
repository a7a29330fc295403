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
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/muster-run/muster/internal/auth"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/rendezvous/election"
)

// DefaultPort is that of endpoints which name none.
const DefaultPort = 2379

// New returns the rendezvous of a job whose agents are elected by the etcd cluster
// at cfg.Endpoint, a list of members with commas between them. cfg is as for
// c10d.New; TLS files, user and password are in its Settings. It opens nothing;
// Next does.
func New(cfg c10d.Config) (rendezvous.Handler, error) {
	endpoints, err := SplitEndpoints(cfg.Endpoint, DefaultPort)
	if err != nil {
		return nil, err
	}
	return NewElected(cfg, "etcd", func(context.Context) election.Config { return election.Config{Endpoints: endpoints} }, endpoints)
}

// NewElected returns the rendezvous of a job under an election. Elect returns its
// configuration, once, which lacks only what cfg has. Name is the backend's; endpoints are where others are.
func NewElected(cfg c10d.Config, name string, elect func(context.Context) election.Config, endpoints []string) (rendezvous.Handler, error) {
	settings := &cfg.Settings
	for _, secret := range []struct {
		option, file string
		to           *string
	}{{"password_file", settings.PasswordFile, &settings.Password}, {"token_file", settings.TokenFile, &settings.Token}} {
		if *secret.to != "" || secret.file == "" {
			continue
		}
		var err error
		if *secret.to, err = auth.ReadSecret(secret.option, secret.file); err != nil {
			return nil, err
		}
	}
	var lacks atomic.Pointer[string]
	tell := cfg.OnWaiting
	waiting := func(text string) {
		lacks.Store(&text)
		if tell != nil {
			tell(rendezvous.Waiting{Note: text})
		}
	}
	cfg.Lacking = func() string {
		if text := lacks.Load(); text != nil {
			return *text
		}
		return ""
	}
	cfg.Name, cfg.Electorate = name, endpoints
	cfg.Elect = func(ctx context.Context, addr string) (c10d.Election, error) {
		elect := elect(ctx)
		elect.RunID, elect.Addr = cfg.RunID, addr
		elect.TTL = settings.KeepAliveLimit()
		elect.CACert, elect.Cert, elect.Key = settings.CACert, settings.Cert, settings.Key
		elect.User, elect.Password = settings.User, settings.Password
		if name == "quorum" {
			elect.Token = settings.Token
		}
		elect.OnWaiting, elect.Logger = waiting, cfg.Logger
		return election.Start(ctx, elect)
	}
	return c10d.New(cfg)
}

// SplitEndpoints takes a list of host[:port] or URLs apart.
func SplitEndpoints(list string, defaultPort int) ([]string, error) {
	var endpoints []string
	var errs []error
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		switch {
		case text == "":
			continue
		case strings.Contains(text, "://"):
			endpoints = append(endpoints, text)
			continue
		}
		host, port, err := rendezvous.SplitEndpoint(text, defaultPort)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		endpoints = append(endpoints, net.JoinHostPort(host, fmt.Sprint(port)))
	}
	if len(endpoints) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("the rendezvous endpoint is empty: name the members, as --rdzv-endpoint host1,host2,host3"))
	}
	return endpoints, errors.Join(errs...)
}
