package admit

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mine reports whether the other end of a connection from this host is a socket of
// this process's user or of root. Where the kernel cannot be asked it is, but not for want of descriptors.
func Mine(nc net.Conn) bool {
	remote, ok1 := nc.RemoteAddr().(*net.TCPAddr)
	local, ok2 := nc.LocalAddr().(*net.TCPAddr)
	if !ok1 || !ok2 || !canAsk() {
		return true
	}
	uid, err := owner(remote.AddrPort(), local.AddrPort())
	switch err {
	case nil:
		return uid == 0 || int(uid) == os.Geteuid() || int(uid) == os.Getuid()
	case unix.ENOENT: // it has gone, and what it sent must not count as somebody's
		return false
	}
	return !tooMany(err)
}

// tooMany reports whether an error is that this process or its host has too many descriptors, for now.
func tooMany(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

var knows atomic.Pointer[bool] // what canAsk has found out

// canAsk finds out whether the kernel knows a socket of our own. For want of descriptors it tries again.
func canAsk() bool {
	if known := knows.Load(); known != nil {
		return *known
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return tooMany(err)
	}
	defer l.Close()
	uid, err := owner(l.Addr().(*net.TCPAddr).AddrPort(), netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	can := err == nil && int(uid) == os.Geteuid()
	if !tooMany(err) {
		knows.Store(&can)
	}
	return can || tooMany(err)
}

// owner asks the kernel for the user of the socket of this host that has the
// address at and the peer to. A socket that its process has closed has none: ENOENT.
// Source: inet_diag_req_v2 and inet_diag_msg in linux/inet_diag.h.
func owner(at, to netip.AddrPort) (uid uint32, err error) {
	const header, length, idLength = 16, 16 + 56, 48
	b := make([]byte, 0, length)
	b = binary.NativeEndian.AppendUint32(b, length)
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number and port
	family := byte(unix.AF_INET6)
	if at.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // in any state
	b = binary.BigEndian.AppendUint16(b, at.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	for _, a := range []netip.Addr{at.Addr(), to.Addr()} {
		var ip [16]byte
		copy(ip[:], a.Unmap().AsSlice())
		b = append(b, ip[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0)          // any interface
	b = binary.NativeEndian.AppendUint64(b, ^uint64(0)) // no cookie

	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	answer := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, err
	}
	const atUID = header + 4 + idLength + 12
	switch answer = answer[:n]; {
	case n >= header+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR:
		return 0, syscall.Errno(-int32(binary.NativeEndian.Uint32(answer[header:])))
	case n < atUID+8 || binary.NativeEndian.Uint16(answer[4:]) != unix.SOCK_DIAG_BY_FAMILY:
		return 0, unix.EPROTO
	case binary.NativeEndian.Uint32(answer[atUID+4:]) == 0: // no inode: closed; the kernel says root
		return 0, unix.ENOENT
	}
	return binary.NativeEndian.Uint32(answer[atUID:]), nil
}
