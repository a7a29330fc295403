// Package hostport reads where a job meets, as --rdzv-endpoint says it, and finds out
// whether that is this host, and which addresses and ports this host has for others.
package hostport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errUser does not show the endpoint, which may have a password.
var errUser = errors.New("the rendezvous endpoint has an '@', which no host name has; leave user and password " +
	"out, and use user and password_file of Spec.Settings")

// Split takes "host[:port]", "[v6]" or "[v6]:port" apart. An empty host
// is localhost; a missing port is defaultPort (-1 if the caller wants to know).
// Source: parse_rendezvous_endpoint in rendezvous/utils.py.
func Split(endpoint string, defaultPort int) (host string, port int, err error) {
	endpoint = strings.TrimSpace(endpoint)
	if strings.Contains(endpoint, "@") {
		return "", 0, errUser
	}
	bad := func(why string) error {
		return fmt.Errorf("rendezvous endpoint %q: %s; want host, host:port or [IPv6]:port", endpoint, why)
	}
	host, portText := endpoint, ""
	switch {
	case strings.HasPrefix(endpoint, "["):
		end := strings.IndexByte(endpoint, ']')
		if end < 0 {
			return "", 0, bad("the bracket is not closed")
		}
		host = endpoint[1:end]
		if net.ParseIP(host) == nil {
			return "", 0, bad("no IPv6 address in the brackets")
		}
		if rest := endpoint[end+1:]; rest != "" {
			if rest[0] != ':' {
				return "", 0, bad("text after the bracket")
			}
			if portText = rest[1:]; portText == "" {
				return "", 0, bad("the port is empty")
			}
		}
	case strings.Count(endpoint, ":") == 1:
		host, portText, _ = strings.Cut(endpoint, ":")
		if portText == "" {
			return "", 0, bad("the port is empty")
		}
	case strings.Count(endpoint, ":") > 1:
		if net.ParseIP(endpoint) == nil {
			return "", 0, bad("too many colons")
		}
	}
	if host == "" {
		host = "localhost"
	}
	if strings.ContainsAny(host, " \t\r\n/\x00") || len(host) > 253 {
		return "", 0, bad("not a host name")
	}
	if portText == "" {
		return host, defaultPort, nil
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", 0, bad("the port is not a number from 0 to 65535")
	}
	return host, int(n), nil
}

// SplitList takes a list of host[:port] or URLs, with commas between them, apart.
func SplitList(list string, defaultPort int) ([]string, error) {
	var endpoints []string
	var errs []error
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		switch {
		case text == "":
			continue
		case strings.Contains(text, "://") && !strings.Contains(text, "@"):
			endpoints = append(endpoints, text)
			continue
		}
		host, port, err := Split(text, defaultPort)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		endpoints = append(endpoints, net.JoinHostPort(host, strconv.Itoa(port)))
	}
	if len(endpoints) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("the rendezvous endpoint is empty; name the members, as Spec.Endpoint "+
			"host1,host2,host3"))
	}
	return endpoints, errors.Join(errs...)
}

// IsThisHost reports whether host names this machine: localhost, a loopback
// address, its host name, one of its addresses, or a name that resolves to one
// of them. Looking a name up takes at most ten seconds.
// Source: _matches_machine_hostname in rendezvous/utils.py.
func IsThisHost(ctx context.Context, host string) bool {
	if host == "localhost" {
		return true
	}
	if IsLocal(host) {
		return true
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsUnspecified() // all addresses of the host whose script says so
	}
	if name, err := os.Hostname(); err == nil && name == host {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, _ := Lookup(ctx, host)
	return slices.ContainsFunc(ips, isLocal)
}

// Reachable is the loopback address if host is the unspecified one, to which not every program can
// connect, and otherwise host.
func Reachable(host string) string {
	switch ip := net.ParseIP(host); {
	case ip == nil || !ip.IsUnspecified():
		return host
	case ip.To4() == nil:
		return "::1"
	}
	return "127.0.0.1"
}

// WayTo is the address of the interface that reaches another one (host:port), "" if none
// does. Nothing is sent.
func WayTo(ctx context.Context, addr string) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", addr)
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// IsLocal reports whether text is one of this machine's addresses.
func IsLocal(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && isLocal(addr)
}

func isLocal(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(Local(), func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Local returns this machine's own addresses, from which its processes connect, and all
// loopback addresses.
func Local() []netip.Prefix {
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
