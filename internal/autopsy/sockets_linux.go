package autopsy

import (
	"bytes"
	"cmp"
	"context"
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

// parseSockets reads one of /proc's tables of sockets.
func parseSockets(text []byte, protocol string, into map[uint64]Socket) {
	if protocol == "unix" {
		parseUnix(text, into)
		return
	}
	for _, k := range procfs.ParseSockets(text) {
		s := Socket{Protocol: protocol, Local: k.Local.String(), SendQueue: k.Send, ReceiveQueue: k.Receive}
		if k.Peer.Port() != 0 {
			s.Peer = k.Peer.String()
		}
		if int(k.State) < len(tcpStates) && strings.HasPrefix(protocol, "tcp") {
			s.State = tcpStates[k.State]
		}
		into[k.Inode] = s
	}
}

// parseUnix reads /proc/net/unix:
//
//	Num RefCount Protocol Flags Type St Inode Path
func parseUnix(text []byte, into map[uint64]Socket) {
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 7 {
			continue
		}
		inode, err := strconv.ParseUint(f[6], 10, 64)
		if err != nil || inode == 0 { // the first line
			continue
		}
		s := Socket{Protocol: "unix"}
		if len(f) > 7 {
			s.Local = f[7]
		}
		switch flags, _ := strconv.ParseUint(f[3], 16, 32); {
		case flags&0x10000 != 0: // SO_ACCEPTCON
			s.State = "LISTEN"
		case f[5] == "03":
			s.State = "ESTABLISHED"
		}
		into[inode] = s
	}
}
