package node

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// A reservedPort is a free TCP port that nobody else is given while it is held,
// although nothing listens on it: its owner (a worker) can still listen there.
type reservedPort struct {
	port int
	fd   int
}

// reservePort finds a free port and holds it until close. The socket is bound
// with SO_REUSEADDR and never listens, so that a listener that sets SO_REUSEADDR
// too, as PyTorch's store does, may take the port, while the system hands it to
// nobody who asks for any free port.
func reservePort() (*reservedPort, error) {
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
	p := &reservedPort{fd: fd}
	switch a := addr.(type) {
	case *unix.SockaddrInet4:
		p.port = a.Port
	case *unix.SockaddrInet6:
		p.port = a.Port
	}
	return p, nil
}

// close gives the port back.
func (p *reservedPort) close() error { return unix.Close(p.fd) }
