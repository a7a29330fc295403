package node

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/muster-run/muster/internal/wire/admit"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store/tcpstore"
)

// serverConfig is that of a store that this host serves. It listens on Settings.Bind;
// without that on all addresses, as PyTorch's does. In a job on one host it listens on host
// alone if that is a loopback address, whatever Bind is.
func (n *Node) serverConfig(host string, port int) tcpstore.ServerConfig {
	cfg := &n.cfg
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() || cfg.MaxNodes > 1 {
		host = cfg.Settings.Bind
	}
	return tcpstore.ServerConfig{Addr: net.JoinHostPort(host, strconv.Itoa(port)), Allow: Allowed(&cfg.Settings),
		Limit: cfg.Conns, Logger: cfg.Logger}
}

// Allowed are the networks whose hosts may connect to this one, which always may; none
// means all.
func Allowed(s *rendezvous.Settings) []netip.Prefix {
	if len(s.Allow) == 0 {
		return nil
	}
	return append(hostport.Local(), s.Allow...)
}

// endpointHost is where an endpoint's server listens: at one of localhost's addresses alone.
func endpointHost(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}

// agentsConfig is serverConfig for the agents' store.
func (n *Node) agentsConfig(host string, port int) tcpstore.ServerConfig {
	cfg := n.serverConfig(host, port)
	cfg.KeepAlive, cfg.Guard = n.cfg.Settings.KeepAliveLimit(), n.guard
	return cfg
}

// oneHost is serverConfig for the workers' store of a job on one host: only processes of this
// host may connect, of this user and of root.
func (n *Node) oneHost(host string, port int) tcpstore.ServerConfig {
	c := n.serverConfig(host, port)
	if n.cfg.Settings.OpenWorkersStore {
		return c
	}
	c.Admit = func(nc net.Conn) string {
		switch {
		case !isHere(nc.RemoteAddr()):
			return "it comes from another host, but the job has only this one; if it is a worker, give Spec.Settings.OpenWorkersStore"
		case !admit.Mine(nc):
			return "another user's process; if it is a worker, give Spec.Settings.OpenWorkersStore"
		}
		return ""
	}
	return c
}

// isHere reports whether an address is one of this machine's.
func isHere(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback() || admit.List(hostport.Local()).Admits(addr)
}
