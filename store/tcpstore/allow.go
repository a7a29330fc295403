package tcpstore

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// refusedEvery is the least time between two log lines about hosts that are not
// allowed.
const refusedEvery = 10 * time.Second

// An allowList says who may connect, and counts who else tried.
type allowList struct {
	prefixes []netip.Prefix

	mu      sync.Mutex // guards the rest
	refused int64
	told    int64 // of refused
	last    time.Time
}

func newAllowList(prefixes []netip.Prefix) (*allowList, error) {
	a := &allowList{}
	for _, p := range prefixes {
		if !p.IsValid() {
			return nil, fmt.Errorf("tcpstore: Allow has %v, which is no network", p)
		}
		a.prefixes = append(a.prefixes, plain(p))
	}
	return a, nil
}

// plain writes a network of IPv4 addresses mapped to IPv6 as one of IPv4.
func plain(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// admits reports whether whoever is at the address may connect. An address that
// is not an IP address is that of a process of this host at a listener of the
// caller's.
func (a *allowList) admits(addr net.Addr) bool {
	if len(a.prefixes) == 0 {
		return true
	}
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return true
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	for _, p := range a.prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// refuse counts a connection that was not admitted, and logs it unless another
// was logged just before.
func (a *allowList) refuse(addr net.Addr, log *slog.Logger, now time.Time) {
	a.mu.Lock()
	a.refused++
	loud := a.last.IsZero() || now.Sub(a.last) >= refusedEvery
	untold := a.refused - a.told
	if loud {
		a.told, a.last = a.refused, now
	}
	a.mu.Unlock()
	if loud {
		log.Warn("tcpstore: connection refused: the address is not in an allowed network",
			"remote", addr.String(), "allow", fmt.Sprint(a.prefixes), "refused", untold)
	}
}

// finish logs the refusals that refuse kept to itself.
func (a *allowList) finish(log *slog.Logger) {
	a.mu.Lock()
	untold := a.refused - a.told
	a.told = a.refused
	a.mu.Unlock()
	if untold > 0 {
		log.Warn("tcpstore: more connections were refused: their addresses were not in an allowed network",
			"allow", fmt.Sprint(a.prefixes), "refused", untold)
	}
}

func (a *allowList) count() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}
