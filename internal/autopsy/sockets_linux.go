package autopsy

import (
	"bytes"
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
	mu sync.Mutex // guards the map
	of map[string]*network
}

// A network is the sockets of one network, by inode.
type network struct {
	mu      sync.Mutex // guards the rest, and lets one worker read for all
	reads   int
	sockets map[uint64]Socket
}

// maxReads is how often a network's tables are read. The kernel gives a table in
// pieces, and skips sockets where it changes in between.
const maxReads = 3

func newNetworks() *networks { return &networks{of: map[string]*network{}} }

// find returns the sockets with these inodes, as far as they are known, of the
// network that a process is in.
func (n *networks) find(pid int, inodes []uint64) map[uint64]Socket {
	name, err := os.Readlink(procPath(pid, "ns", "net"))
	if err != nil {
		name = strconv.Itoa(pid)
	}
	n.mu.Lock()
	net := n.of[name]
	if net == nil {
		net = &network{sockets: map[uint64]Socket{}}
		n.of[name] = net
	}
	n.mu.Unlock()

	net.mu.Lock()
	defer net.mu.Unlock()
	for {
		found, missing := map[uint64]Socket{}, false
		for _, inode := range inodes {
			if s, ok := net.sockets[inode]; ok {
				found[inode] = s
			} else {
				missing = true
			}
		}
		if !missing || net.reads == maxReads {
			return found
		}
		net.reads++
		net.read(pid)
	}
}

func (n *network) read(pid int) {
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		if text, err := procfs.ReadFile(procPath(pid, "net", protocol)); err == nil {
			parseInet(text, protocol, n.sockets)
		}
	}
	if text, err := procfs.ReadFile(procPath(pid, "net", "unix")); err == nil {
		parseUnix(text, n.sockets)
	}
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
		link, err := os.Readlink(procPath(pid, "fd", name))
		text, isSocket := strings.CutPrefix(link, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		inode, _ := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
		fd, _ := strconv.Atoi(name)
		fds, inodes = append(fds, fd), append(inodes, inode)
	}
	s.Total = len(fds)
	if s.Total == 0 {
		return s
	}
	found := all.find(pid, inodes)
	for i, inode := range inodes {
		socket, ok := found[inode]
		if !ok {
			socket.Protocol = "other"
		}
		socket.FD = fds[i]
		s.Open = append(s.Open, socket)
	}
	slices.SortFunc(s.Open, func(a, b Socket) int {
		if busy := a.SendQueue+a.ReceiveQueue > 0; busy != (b.SendQueue+b.ReceiveQueue > 0) {
			if busy {
				return -1
			}
			return 1
		}
		return a.FD - b.FD
	})
	s.Open = s.Open[:min(len(s.Open), maxSockets)]
	return s
}

// tcpStates are the states' names, by the kernel's numbers.
var tcpStates = [...]string{1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2",
	6: "TIME_WAIT", 7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV"}

// parseInet reads /proc/net/tcp, tcp6, udp or udp6:
//
//	sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
func parseInet(text []byte, protocol string, into map[uint64]Socket) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 10 || f[0] == "sl" {
			continue
		}
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if err != nil || inode == 0 {
			continue
		}
		s := Socket{Protocol: protocol}
		local, err1 := parseAddress(f[1])
		peer, err2 := parseAddress(f[2])
		state, err3 := strconv.ParseUint(f[3], 16, 8)
		tx, rx, _ := strings.Cut(f[4], ":")
		send, err4 := strconv.ParseInt(tx, 16, 64)
		receive, err5 := strconv.ParseInt(rx, 16, 64)
		if errors.Join(err1, err2, err3, err4, err5) != nil {
			continue
		}
		s.Local, s.SendQueue, s.ReceiveQueue = local.String(), send, receive
		if peer.Port() != 0 {
			s.Peer = peer.String()
		}
		if int(state) < len(tcpStates) && strings.HasPrefix(protocol, "tcp") {
			s.State = tcpStates[state]
		}
		into[inode] = s
	}
}

var errAddress = errors.New("malformed address")

// parseAddress reads an address as the kernel prints it: 32-bit words in this
// machine's byte order, in hex, and the port.
func parseAddress(text string) (netip.AddrPort, error) {
	host, portText, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil {
		return netip.AddrPort{}, errAddress
	}
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
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

// parseUnix reads /proc/net/unix:
//
//	Num RefCount Protocol Flags Type St Inode Path
func parseUnix(text []byte, into map[uint64]Socket) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 7 || f[0] == "Num" {
			continue
		}
		inode, err := strconv.ParseUint(f[6], 10, 64)
		if err != nil || inode == 0 {
			continue
		}
		s := Socket{Protocol: "unix"}
		if len(f) > 7 {
			s.Local = f[7]
		}
		switch flags, _ := strconv.ParseUint(f[3], 16, 32); {
		case flags&0x10000 != 0:
			s.State = "LISTEN"
		case f[5] == "03":
			s.State = "ESTABLISHED"
		}
		into[inode] = s
	}
}
