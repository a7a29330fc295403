package autopsy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-run/muster/internal/procfs"
)

const (
	maxFiles   = 1 << 16 // file descriptors looked at
	maxSockets = 256     // kept of a process
)

// networks has the tables of sockets of each network that a worker is in. Workers
// usually share one, and its tables may be long.
type networks struct {
	mu sync.Mutex // guards the map and what is in it, and lets one worker read for all
	of map[string]*network
}

// A network is the sockets of one network, by inode.
type network struct {
	reads   int
	sockets map[uint64]Socket
}

// maxReads is how often a network's tables are read. The kernel gives a table in
// pieces, and skips sockets where it changes in between.
const maxReads = 3

func newNetworks() *networks { return &networks{of: map[string]*network{}} }

// find returns the sockets with these inodes, as far as they are known, of the
// network that a process is in.
func (n *networks) find(pid int, inodes []uint64) []Socket {
	name, err := os.Readlink(procPath(pid, "ns", "net"))
	if err != nil {
		name = strconv.Itoa(pid)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	net := n.of[name]
	if net == nil {
		net = &network{sockets: map[uint64]Socket{}}
		n.of[name] = net
	}
	unknown := func(inode uint64) bool { return net.sockets[inode].Protocol == "" }
	for ; slices.ContainsFunc(inodes, unknown) && net.reads < maxReads; net.reads++ {
		for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
			if text, err := procfs.ReadFile(procPath(pid, "net", protocol)); err == nil {
				parseSockets(text, protocol, net.sockets)
			}
		}
	}
	found := make([]Socket, len(inodes))
	for i, inode := range inodes {
		found[i] = net.sockets[inode]
	}
	return found
}

// sockets lists a process' open sockets, those with data in a queue first.
func (t *taking) sockets(ctx context.Context, pid int) Sockets {
	all := t.networks
	s, ok := within(ctx, func() Sockets { return readSockets(pid, all) })
	if !ok {
		s.Problems = append(s.Problems, "/proc did not answer in time")
	}
	return s
}

func readSockets(pid int, all *networks) (s Sockets) {
	dir, err := os.Open(procPath(pid, "fd"))
	if err != nil {
		return Sockets{Problems: []string{err.Error()}}
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxFiles)
	s.Files = len(names)
	var fds []int
	var inodes []uint64
	for _, name := range names {
		link, _ := os.Readlink(procPath(pid, "fd", name))
		if text, isSocket := strings.CutPrefix(link, "socket:["); isSocket {
			inode, _ := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			fd, _ := strconv.Atoi(name)
			fds, inodes = append(fds, fd), append(inodes, inode)
		}
	}
	s.Total = len(fds)
	if s.Total == 0 {
		return s
	}
	s.Open = all.find(pid, inodes)
	for i := range s.Open {
		s.Open[i].FD, s.Open[i].Protocol = fds[i], cmp.Or(s.Open[i].Protocol, "other")
	}
	slices.SortFunc(s.Open, func(a, b Socket) int {
		return cmp.Or(before(a.SendQueue+a.ReceiveQueue > 0, b.SendQueue+b.ReceiveQueue > 0), a.FD-b.FD)
	})
	s.Open = s.Open[:min(len(s.Open), maxSockets)]
	return s
}

// tcpStates are the states' names, by the kernel's numbers.
var tcpStates = [...]string{1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2",
	6: "TIME_WAIT", 7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV"}

// parseSockets reads /proc/net/tcp, tcp6, udp, udp6 or unix:
//
//	sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
//	Num RefCount Protocol Flags Type St Inode Path
func parseSockets(text []byte, protocol string, into map[uint64]Socket) {
	parse, at := parseInet, 9
	if protocol == "unix" {
		parse, at = parseUnix, 6
	}
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) <= at {
			continue
		}
		inode, err := strconv.ParseUint(f[at], 10, 64) // no number in the first line
		if err != nil || inode == 0 {
			continue
		}
		if s, err := parse(f); err == nil {
			s.Protocol = protocol
			if strings.HasPrefix(protocol, "udp") {
				s.State = "" // it has none
			}
			into[inode] = s
		}
	}
}

func parseInet(f []string) (s Socket, err error) {
	local, err1 := parseAddress(f[1])
	peer, err2 := parseAddress(f[2])
	state, err3 := strconv.ParseUint(f[3], 16, 8)
	tx, rx, _ := strings.Cut(f[4], ":")
	var err4, err5 error
	s.SendQueue, err4 = strconv.ParseInt(tx, 16, 64)
	s.ReceiveQueue, err5 = strconv.ParseInt(rx, 16, 64)
	s.Local = local.String()
	if peer.Port() != 0 {
		s.Peer = peer.String()
	}
	if int(state) < len(tcpStates) {
		s.State = tcpStates[state]
	}
	return s, errors.Join(err1, err2, err3, err4, err5)
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

func parseUnix(f []string) (s Socket, err error) {
	if len(f) > 7 {
		s.Local = f[7]
	}
	flags, _ := strconv.ParseUint(f[3], 16, 32)
	switch {
	case flags&0x10000 != 0: // SO_ACCEPTCON
		s.State = "LISTEN"
	case f[5] == "03":
		s.State = "ESTABLISHED"
	}
	return s, nil
}
