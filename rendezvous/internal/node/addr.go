package node

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
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
		return host
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, _ := net.DefaultResolver.LookupIPAddr(ctx, host)
	for _, a := range addrs {
		if !a.IP.IsLoopback() {
			return a.IP.String()
		}
	}
	if ip := firstAddr(); ip != "" {
		return ip
	}
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "127.0.0.1"
}

// firstAddr is the first address of this machine that is not a loopback one,
// IPv4 before IPv6.
func firstAddr() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	v6 := ""
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok || !ipnet.IP.IsGlobalUnicast() {
			continue
		}
		if ipnet.IP.To4() != nil {
			return ipnet.IP.String()
		}
		if v6 == "" {
			v6 = ipnet.IP.String()
		}
	}
	return v6
}

// isOwn says whether an address is one of this machine's.
func isOwn(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(thisHost(), func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

// localAddr is the address of the interface that reaches an endpoint. Nothing is
// sent.
func localAddr(ctx context.Context, endpoint string) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", endpoint)
	if err != nil {
		return firstAddr()
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// thisHost returns this machine's own addresses, from which its workers connect.
func thisHost() []netip.Prefix {
	own := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ipnet, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ipnet.IP); ok {
				addr = addr.Unmap()
				own = append(own, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	return own
}
