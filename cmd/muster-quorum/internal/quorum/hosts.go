package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/pipe"
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

// problems are what is wrong with settings.
type problems []error

func (p *problems) addIf(bad bool, format string, a ...any) {
	if bad {
		*p = append(*p, fmt.Errorf(format, a...))
	}
}

// parseHosts checks the settings of a member and returns it and the others.
func parseHosts(cfg *pipe.Serve) (me *host, others []*host, err error) {
	var errs problems
	errs.addIf(cfg.RunID == "", "run_id is empty")
	n, h, e := len(cfg.Members), cfg.Heartbeat.Or(defaultHeartbeat), cfg.Election.Or(defaultElection)
	errs.addIf(n != 1 && n != 3 && n != 5, "%d members: want 1, 3 or 5, so that a majority remains when one is lost", n)
	errs.addIf(cfg.Bind != "" && net.ParseIP(cfg.Bind) == nil, "bind %q: want an IP address", cfg.Bind)
	errs.addIf(e < 5*h || e > 50*time.Second,
		"election timeout %v with heartbeats every %v: want 5 heartbeats or more, 50 s at most", e, h)
	cfg.Allow, err = admit.NewList(cfg.Allow)
	errs.addIf(err != nil, "allow: %w", err)
	var seen []string
	for _, name := range cfg.Members {
		h, err := parseHost(name, cmp.Or(cfg.Port, defaultPort))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs.addIf(slices.Contains(seen, h.client), "member %q is named twice", name)
		seen = append(seen, h.client)
		h.secure = cfg.CACert != "" || cfg.Token != ""
		if name == cfg.Name {
			me = h
		} else {
			others = append(others, h)
		}
	}
	errs.addIf(me == nil, "this host's name %q is not among the members %q", cfg.Name, cfg.Members)
	return me, others, errors.Join(errs...)
}
