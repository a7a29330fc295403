package cli

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/procfs"
)

// findAgents looks for the agents of this user that serve their health, by pid.
// silent is how many agents do not.
func findAgents() (agents []foundAgent, silent int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, 0, fmt.Errorf("look for agents: %w; give the address of --health-addr", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		agent, isAgent := agentOf(pid)
		switch {
		case !isAgent:
		case len(agent.addrs) == 0:
			silent++
		default:
			agents = append(agents, agent)
		}
	}
	slices.SortFunc(agents, func(a, b foundAgent) int { return a.pid - b.pid })
	return agents, silent, nil
}

// agentOf says whether a process is an agent of this user, and where it serves.
func agentOf(pid int) (agent foundAgent, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	// The command line is in the process' memory: that of one which hangs may not come.
	comm, _ := procfs.ReadFile(dir + "/comm") // of the file that was started, such as muster-0.1
	if name := string(comm); !strings.HasPrefix(name, "muster") && !strings.HasPrefix(name, torchrunName) {
		return agent, false
	}
	cmdline, err := procfs.ReadFile(dir + "/cmdline")
	if err != nil {
		return agent, false
	}
	args, ok := agentArgs(splitNul(cmdline))
	if !ok {
		return agent, false
	}
	environ, err := procfs.Environ(pid)
	if err != nil {
		return agent, false // another user's
	}
	agent.pid = pid
	cwd, _ := os.Readlink(dir + "/cwd")
	addr := absoluteAddr(healthAddr(args, splitNul(environ)), cwd)
	network, address, err := health.ParseAddr(addr)
	switch {
	case addr == "" || err != nil:
	case network == "tcp" && strings.HasSuffix(address, ":0"):
		agent.addrs = listening(pid, strings.TrimSuffix(address, ":0"))
	default:
		agent.addrs = []string{addr}
	}
	return agent, true
}

// listening returns the TCP addresses of a host's address at which a process
// listens.
func listening(pid int, host string) (addrs []string) {
	dir := "/proc/" + strconv.Itoa(pid)
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil
	}
	inodes := map[string]bool{}
	for _, e := range entries {
		link, _ := os.Readlink(dir + "/fd/" + e.Name())
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range [...]string{"/net/tcp", "/net/tcp6"} {
		text, err := procfs.ReadFile(dir + table)
		if err != nil {
			continue
		}
		for _, s := range procfs.ParseSockets(text) {
			if listensAt(s, host) && inodes[strconv.FormatUint(s.Inode, 10)] {
				addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(int(s.Local.Port()))))
			}
		}
	}
	return addrs
}

// listensAt tells whether a socket listens at a host's address. If host is a name, it may:
// whoever listens will be asked.
func listensAt(s procfs.Socket, host string) bool {
	addr, err := netip.ParseAddr(host)
	return s.State == procfs.Listen && (err != nil || s.Local.Addr().Unmap() == addr.Unmap())
}
