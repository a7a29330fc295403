package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/admit"
	"github.com/muster-run/muster/internal/pipe"
)

// Defaults of a member.
const (
	defaultPort      = 29400
	defaultHeartbeat = 50 * time.Millisecond
	defaultElection  = 500 * time.Millisecond
)

// A host is one of the names that have a member.
type host struct {
	name   string // as the settings have it
	client string // host:port for clients
	peer   string // host:port for the other members
	secure bool   // both by TLS
}

func (h *host) clientURL() string { return h.scheme() + h.client }
func (h *host) peerURL() string   { return h.scheme() + h.peer }

func (h *host) scheme() string {
	if h.secure {
		return "https://"
	}
	return "http://"
}

// parseHost reads host or host:port; members talk on the next port.
func parseHost(name string, port int) (*host, error) {
	h, p, err := net.SplitHostPort(name)
	if err != nil {
		h, p = name, strconv.Itoa(port)
		if len(h) > 2 && h[0] == '[' && h[len(h)-1] == ']' {
			h = h[1 : len(h)-1]
		}
	}
	n, err := strconv.Atoi(p)
	if err != nil || n < 1 || n > 65534 {
		return nil, fmt.Errorf("member %q: port %s: want 1 to 65534", name, p)
	}
	for _, c := range h {
		if c <= ' ' || c == ',' || c == '=' || c == '/' {
			return nil, fmt.Errorf("member %q: want host or host:port", name)
		}
	}
	if h == "" {
		return nil, fmt.Errorf("member %q: no host", name)
	}
	return &host{name: name, client: net.JoinHostPort(h, p), peer: net.JoinHostPort(h, strconv.Itoa(n+1))}, nil
}

// parseHosts checks the settings of a member and returns it and the others.
func parseHosts(cfg *pipe.Serve) (me *host, others []*host, err error) {
	var errs []error
	if cfg.RunID == "" {
		errs = append(errs, errors.New("run_id is empty"))
	}
	if n := len(cfg.Members); n != 1 && n != 3 && n != 5 {
		errs = append(errs, fmt.Errorf("%d members: want 1, 3 or 5, so that a majority remains when one is lost", n))
	}
	if cfg.Bind != "" && net.ParseIP(cfg.Bind) == nil {
		errs = append(errs, fmt.Errorf("bind %q: want an IP address", cfg.Bind))
	}
	if h, e := cfg.Heartbeat.Or(defaultHeartbeat), cfg.Election.Or(defaultElection); e < 5*h || e > 50*time.Second {
		errs = append(errs,
			fmt.Errorf("election timeout %v with heartbeats every %v: want 5 heartbeats or more, 50 s at most", e, h))
	}
	if cfg.Allow, err = admit.NewList(cfg.Allow); err != nil {
		errs = append(errs, fmt.Errorf("allow: %w", err))
	}
	var seen []string
	for _, name := range cfg.Members {
		h, err := parseHost(name, cmp.Or(cfg.Port, defaultPort))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if slices.Contains(seen, h.client) {
			errs = append(errs, fmt.Errorf("member %q is named twice", name))
		}
		seen = append(seen, h.client)
		h.secure = cfg.CACert != "" || cfg.Token != ""
		if name == cfg.Name {
			me = h
		} else {
			others = append(others, h)
		}
	}
	if me == nil {
		errs = append(errs, fmt.Errorf("this host's name %q is not among the members %q", cfg.Name, cfg.Members))
	}
	return me, others, errors.Join(errs...)
}
