package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Reservation is a TCP port that nobody else is given while it is held, although
// nothing listens on it: its owner (a worker) can still listen there.
type Reservation struct {
	Port int
	fd   int
}

// Reserve holds a port (0: any free one) of an address ("" for all) until Close. The socket
// is bound with SO_REUSEADDR and never listens, so that a listener that sets SO_REUSEADDR too,
// as PyTorch's store does, may take the port, while the system hands it to nobody who asks
// for any free port.
func Reserve(host string, port int) (*Reservation, error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port})
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}
	} else if err == nil {
		addr = &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	}
	syscall.ForkLock.RLock() // no worker may get the socket
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) && host == "" {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: port}
		fd, err = unix.Socket(family, unix.SOCK_STREAM, 0)
	}
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	if family == unix.AF_INET6 && host == "" {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
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
	switch a := addr.(type) {
	case *unix.SockaddrInet4:
		port = a.Port
	case *unix.SockaddrInet6:
		port = a.Port
	}
	return &Reservation{Port: port, fd: fd}, nil
}

// Close gives the port back.
func (r *Reservation) Close() error { return unix.Close(r.fd) }
