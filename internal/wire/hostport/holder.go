package hostport

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// listening is the state of a socket that listens. Source: net/tcp_states.h.
const listening = "0A"

// Holder names the processes that listen on a port, as far as this user may know. root has /proc.
func Holder(root fs.FS, port int) string {
	var sockets []string
	for _, name := range []string{"proc/self/net/tcp", "proc/self/net/tcp6"} {
		text, _ := fs.ReadFile(root, name)
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets = append(sockets, "socket:["+f[9]+"]")
			}
		}
	}
	if sockets == nil {
		return "an unknown process"
	}
	var found []string
	procs, _ := fs.ReadDir(root, "proc")
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil && holds(root, p.Name(), sockets) {
			comm, _ := fs.ReadFile(root, "proc/"+p.Name()+"/comm")
			found = append(found, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	slices.Sort(found)
	return cmp.Or(strings.Join(found, ", "), "a process of another user or container")
}

// holds reports whether a process has one of some sockets open.
func holds(root fs.FS, pid string, sockets []string) bool {
	fds, _ := fs.ReadDir(root, "proc/"+pid+"/fd")
	return slices.ContainsFunc(fds, func(fd fs.DirEntry) bool {
		link, err := fs.ReadLink(root, "proc/"+pid+"/fd/"+fd.Name())
		return err == nil && slices.Contains(sockets, link)
	})
}
