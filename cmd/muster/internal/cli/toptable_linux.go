package cli

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// listener reads a line of /proc/net/tcp: the port, if the line is a socket that
// listens at host and is one of inodes.
// Source: get_tcp4_sock in net/ipv4/tcp_ipv4.c.
func listener(line, host string, inodes map[string]bool) (port uint16, ok bool) {
	const listens = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != listens || !inodes[f[9]] {
		return 0, false
	}
	addr, text, _ := strings.Cut(f[1], ":")
	n, err := strconv.ParseUint(text, 16, 16)
	ip, ipOK := kernelAddr(addr)
	want, parseErr := netip.ParseAddr(host)
	if err != nil || !ipOK {
		return 0, false
	}
	if parseErr != nil { // a name; whoever listens will be asked
		return uint16(n), true
	}
	return uint16(n), ip.Unmap() == want.Unmap()
}

// kernelAddr reads an address as the kernel prints it: words of 32 bits in the
// machine's order.
func kernelAddr(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip, ok
}

func joinPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
