package procfs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// A Socket is a line of /proc/<pid>/net/tcp or tcp6.
type Socket struct {
	Local netip.AddrPort
	State uint8
	Inode uint64 // as in the link socket:[INODE] of a file descriptor
}

// Listen is the State of a socket that listens. Source: net/tcp_states.h.
const Listen = 10

// ParseSockets reads a table of sockets. It skips lines that are not as they should be,
// and sockets that no file descriptor has.
//
//	sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
func ParseSockets(text []byte) (list []Socket) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 10 {
			continue
		}
		local, err1 := parseAddress(f[1])
		state, err2 := strconv.ParseUint(f[3], 16, 8)
		inode, err3 := strconv.ParseUint(f[9], 10, 64)
		if err1 == nil && err2 == nil && err3 == nil && inode != 0 {
			list = append(list, Socket{local, uint8(state), inode})
		}
	}
	return list
}

var errAddress = errors.New("malformed address")

// parseAddress reads an address as the kernel prints it: 32-bit words in this
// machine's byte order, in hex, and the port.
func parseAddress(text string) (netip.AddrPort, error) {
	host, portText, _ := strings.Cut(text, ":")
	port, err1 := strconv.ParseUint(portText, 16, 16)
	raw, err2 := hex.DecodeString(host)
	if err1 != nil || err2 != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, errAddress
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, errAddress
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}
