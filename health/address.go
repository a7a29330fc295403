package health

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/wire/unixsock"
)

// addrError says what is wrong with an address, before anything was opened.
func addrError(addr, reason string) error {
	return fmt.Errorf("health address %q: %s; give a port such as 9000, host:port such as 0.0.0.0:9000, or unix:/path",
		addr, reason)
}

// maxSocketPath is what sun_path holds on every system that we build for.
const maxSocketPath = 103

// ParseAddr says where an address is: network "tcp" or "unix", and the address on
// it. A bare port, or one without a host, means 127.0.0.1.
func ParseAddr(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" || strings.ContainsRune(path, 0) {
			return "", "", addrError(addr, "no path after unix:")
		}
		if len(path) > maxSocketPath {
			return "", "", addrError(addr, fmt.Sprintf("a path of %d bytes is longer than sockets may have (%d)", len(path),
				maxSocketPath))
		}
		return "unix", path, nil
	}
	host, port := "", addr
	if strings.Contains(addr, ":") {
		if host, port, err = net.SplitHostPort(addr); err != nil {
			reason := err.Error()
			if e, ok := errors.AsType[*net.AddrError](err); ok {
				reason = e.Err
			}
			return "", "", addrError(addr, reason)
		}
	}
	if port == "" {
		return "", "", addrError(addr, "there is no port")
	}
	n, err := strconv.ParseUint(port, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > 65535:
		return "", "", addrError(addr, "port "+port+" is more than 65535")
	case err != nil:
		return "", "", addrError(addr, fmt.Sprintf("port %q is not a number", port))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return "tcp", net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// listen opens an address.
func listen(addr string) (net.Listener, error) {
	network, address, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		l, err := unixsock.Listen(network, address)
		if err != nil {
			return nil, fmt.Errorf("health address %s: %w", addr, err)
		}
		l.SetUnlinkOnClose(true)
		return l, nil
	}
	l, err := net.Listen(network, address)
	if err != nil {
		said := hint(err)
		if e, ok := errors.AsType[*net.OpError](err); ok {
			err = e.Err // what a person wants to know
		}
		return nil, fmt.Errorf("health address %s: %w%s", address, err, said)
	}
	return l, nil
}

// hint says what to do about an error of net.Listen, if that is known.
func hint(err error) string {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "; give an IP address of this host"
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "; another process listens there, perhaps the agent of another job; give another port, or 0 for any"
	case errors.Is(err, syscall.EACCES):
		return "; ports below 1024 are root's; give a higher one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "; no interface of this host has that address; 0.0.0.0 means all of them"
	}
	return ""
}

// URL is what to open in a browser. name is the host's, as others know it; for a socket
// the URL is its address.
func (s *Server) URL(name string) string {
	tcp, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		return "unix:" + s.Addr().String()
	}
	if !tcp.IP.IsUnspecified() {
		name = tcp.IP.String()
	}
	return "http://" + net.JoinHostPort(name, strconv.Itoa(tcp.Port)) + "/"
}

// hosts says which Host headers a server answers to, so that a page of another site,
// whose name is made to lead here, cannot read what is served.
type hosts struct {
	checked bool     // browsers come here: it is not a Unix socket
	local   bool     // only this host can connect
	names   []string // beside localhost
}

// hostsOf returns the hosts of a server at l: the names that it was given and, where other
// hosts can connect, those of this host.
func hostsOf(l net.Addr, addr string, names []string) hosts {
	tcp, ok := l.(*net.TCPAddr)
	if !ok {
		return hosts{}
	}
	h := hosts{checked: true, local: tcp.IP.IsLoopback(), names: names}
	if !h.local {
		given, _, _ := net.SplitHostPort(addr)
		name, _ := os.Hostname()
		short, _, _ := strings.Cut(name, ".")
		h.names = slices.Concat(names, []string{given, name, short})
	}
	return h
}

// allow reports whether a Host header is one of this server's: an address, of the loopback
// interface where nothing else leads here, or a name that it is known by.
func (h hosts) allow(host string) bool {
	if host == "" || !h.checked { // HTTP/1.0, which no browser speaks
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if ip, err := netip.ParseAddr(name); err == nil {
		return !h.local || ip.Unmap().IsLoopback()
	}
	name = strings.TrimSuffix(name, ".")
	return strings.EqualFold(name, "localhost") ||
		name != "" && slices.ContainsFunc(h.names, func(known string) bool { return strings.EqualFold(name, known) })
}
