package c10d

import (
	"net"
	"net/netip"

	"github.com/muster-run/muster/internal/admit"
	"github.com/muster-run/muster/store/tcpstore"
)

// OneHost is ServerConfig for the workers' store of a job on one host: only processes of this
// host may connect, of this user and of root.
func (cfg *Config) OneHost(host string, port int) tcpstore.ServerConfig {
	c := cfg.ServerConfig(host, port)
	if cfg.Settings.OpenWorkersStore {
		return c
	}
	c.Admit = func(nc net.Conn) string {
		switch {
		case !isHere(nc.RemoteAddr()):
			return "it comes from another host, and the job has this one; if it is a worker, give --rdzv-conf open_workers_store=true"
		case !admit.Mine(nc):
			return "another user's process; if it is a worker, give --rdzv-conf open_workers_store=true"
		}
		return ""
	}
	return c
}

// isHere says whether an address is one of this machine's.
func isHere(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback() || admit.List(ThisHost()).Admits(addr)
}

// admitHosts has the workers' store of many hosts admit those of a round and this one; nil
// are all.
func (m *master) admitHosts(hosts []netip.Prefix) { m.hosts.Store(&hosts) }

// admits is the Admit of the workers' store of many hosts.
func (m *master) admits(nc net.Conn) string {
	hosts := m.hosts.Load()
	if hosts == nil || admit.List(*hosts).Admits(nc.RemoteAddr()) || isHere(nc.RemoteAddr()) {
		return ""
	}
	return "no host of this round has the address; if it is a worker's, give --rdzv-conf open_workers_store=true"
}
