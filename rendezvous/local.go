package rendezvous

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IsThisHost says whether host names this machine: localhost, a loopback
// address, its host name, one of its addresses, or a name that resolves to one
// of them. Looking a name up takes at most ten seconds.
// Source: _matches_machine_hostname in rendezvous/utils.py.
func IsThisHost(ctx context.Context, host string) bool {
	if host == "localhost" {
		return true
	}
	if ip := net.ParseIP(host); ip != nil {
		return isLocalIP(ip)
	}
	if name, err := os.Hostname(); err == nil && name == host {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false
	}
	for _, addr := range addrs {
		if isLocalIP(addr.IP) {
			return true
		}
	}
	return false
}

func isLocalIP(ip net.IP) bool {
	if ip.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, addr := range addrs {
		if ipnet, ok := addr.(*net.IPNet); ok && ipnet.IP.Equal(ip) {
			return true
		}
	}
	return false
}

// A ReservedPort is a free TCP port that nobody else is given while it is held,
// although nothing listens on it: its owner (a worker) can still listen there.
type ReservedPort struct {
	Port int
	fd   int
}

// ReservePort finds a free port and holds it until Close. The socket is bound
// with SO_REUSEADDR and never listens, so that a listener that sets SO_REUSEADDR
// too, as PyTorch's store does, may take the port, while the system hands it to
// nobody who asks for any free port.
func ReservePort() (*ReservedPort, error) {
	syscall.ForkLock.RLock() // no worker may get the socket
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	family := unix.AF_INET6
	if err != nil {
		family = unix.AF_INET
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	}
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	var addr unix.Sockaddr = &unix.SockaddrInet4{}
	if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		addr = &unix.SockaddrInet6{}
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	if err == nil {
		addr, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	p := &ReservedPort{fd: fd}
	switch a := addr.(type) {
	case *unix.SockaddrInet4:
		p.Port = a.Port
	case *unix.SockaddrInet6:
		p.Port = a.Port
	}
	return p, nil
}

// Close gives the port back.
func (p *ReservedPort) Close() error { return unix.Close(p.fd) }
