package node

import (
	"cmp"
	"context"
	"net"
	"os"
	"time"

	"github.com/muster-run/muster/internal/wire/hostport"
)

// hostAddr is the address of this machine that others know as host: host itself
// if that is an address, otherwise what it resolves to. A name that means the
// loopback address here means nothing elsewhere; then it is the address from
// which this machine reaches others.
func hostAddr(ctx context.Context, host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip != nil {
		return hostport.Reachable(host)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, _ := hostport.Lookup(ctx, host)
	for _, a := range addrs {
		if !a.IsLoopback() {
			return a.String()
		}
	}
	name, _ := os.Hostname()
	return cmp.Or(firstAddr(), name, "127.0.0.1")
}

// firstAddr is the first address of this machine that is not a loopback one,
// IPv4 before IPv6.
func firstAddr() (v6 string) {
	for _, p := range hostport.Local() {
		switch addr := p.Addr(); {
		case !addr.IsGlobalUnicast():
		case addr.Is4():
			return addr.String()
		default:
			v6 = cmp.Or(v6, addr.String())
		}
	}
	return v6
}

// localAddr is the address of the interface that reaches an endpoint.
func localAddr(ctx context.Context, endpoint string) string {
	return cmp.Or(hostport.WayTo(ctx, endpoint), firstAddr())
}
