// Package admit says from which addresses connections may come, and logs what is turned
// away without a line for each.
package admit

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// every is the least time between two log lines of a Tally.
const every = 10 * time.Second

// A Tally counts events that strangers may cause as often as they like, and logs one
// in ten seconds. The zero Tally is ready for use.
type Tally struct {
	mu    sync.Mutex // guards the rest
	count int64
	told  int64 // of count
	last  time.Time
}

// Warn counts an event, and logs it unless another was logged just before. The line
// has the number of events since the last one, by the name what.
func (t *Tally) Warn(log *slog.Logger, msg, what string, args ...any) {
	now := time.Now()
	t.mu.Lock()
	t.count++
	loud := t.last.IsZero() || now.Sub(t.last) >= every
	untold := t.count - t.told
	if loud {
		t.told, t.last = t.count, now
	}
	t.mu.Unlock()
	if loud {
		log.Warn(msg, append(args, what, untold)...)
	}
}

// Finish logs how many events Warn has kept to itself, if any.
func (t *Tally) Finish(log *slog.Logger, msg, what string, args ...any) {
	t.mu.Lock()
	untold := t.count - t.told
	t.told = t.count
	t.mu.Unlock()
	if untold > 0 {
		log.Warn(msg, append(args, what, untold)...)
	}
}

// Count returns the number of events.
func (t *Tally) Count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// A List is the networks from which connections may come; an empty one admits all.
type List []netip.Prefix

// ParseNetwork reads a network, or a single address, which has no zone.
func ParseNetwork(text string) (network netip.Prefix, ok bool) {
	text = strings.TrimSpace(text)
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), addr.Zone() == ""
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err == nil
}

// NewList checks networks. Those of IPv4 addresses mapped to IPv6 count as IPv4.
func NewList(prefixes []netip.Prefix) (list List, err error) {
	for _, p := range prefixes {
		if !p.IsValid() {
			return nil, fmt.Errorf("%v is not a network", p)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

// Admits reports whether a client at the address may connect. An address that is not
// an IP address is that of a process of this host, at a listener of the caller's.
func (l List) Admits(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	if len(l) == 0 || !ok {
		return true
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	for _, p := range l {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
