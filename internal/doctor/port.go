package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// checkPort sees whether the endpoint's port is free on this host. free says whether
// it is.
func (d *doctor) checkPort(ctx context.Context) (line Line, free bool) {
	at := ":" + strconv.Itoa(d.Port)
	if d.Settings.Bind != "" {
		at = net.JoinHostPort(d.Settings.Bind, strconv.Itoa(d.Port))
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at)
	if err == nil {
		l.Close()
		return ok("%d is free on this host, where the hosts will meet", d.Port), true
	}
	other := fmt.Sprintf("choose another port for --rdzv-endpoint (on all hosts), for example %s:%d", d.Host, d.Port+1)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		holder := d.holder(d.Port)
		kind := identify(ctx, d.System, net.JoinHostPort("localhost", strconv.Itoa(d.Port)))
		text := fmt.Sprintf("%d is in use on this host, the endpoint, by %s: %s", d.Port, holder, kind.text)
		if kind.store {
			return warning(text, "right if it is the store of this job (muster store, or an agent of it); otherwise "+other), false
		}
		return failure(text, "end it, or "+other), false
	case errors.Is(err, syscall.EACCES):
		return failure(fmt.Sprintf("%d: this user may not listen there: %v", d.Port, cause(err)), "ports below 1024 are root's; "+other), false
	}
	return failure(fmt.Sprintf("cannot listen at %s: %v", at, err), other+"; check bind= of --rdzv-conf"), false
}

// holder names the processes that listen on a port, as far as this user may know.
func (d *doctor) holder(port int) string {
	inodes := map[string]bool{}
	for _, name := range []string{"proc/self/net/tcp", "proc/self/net/tcp6"} {
		text, _ := fs.ReadFile(d.System.Root, name)
		for _, inode := range listening(text, port) {
			inodes[inode] = true
		}
	}
	if len(inodes) == 0 {
		return "an unknown process"
	}
	var found []string
	procs, _ := fs.ReadDir(d.System.Root, "proc")
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil && d.holds(p.Name(), inodes) {
			comm, _ := fs.ReadFile(d.System.Root, "proc/"+p.Name()+"/comm")
			found = append(found, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	slices.Sort(found)
	return cmp.Or(strings.Join(found, ", "), "a process of another user or container")
}

// holds says whether a process has one of some sockets open.
func (d *doctor) holds(pid string, inodes map[string]bool) bool {
	fds, _ := fs.ReadDir(d.System.Root, "proc/"+pid+"/fd")
	for _, fd := range fds {
		link, err := fs.ReadLink(d.System.Root, "proc/"+pid+"/fd/"+fd.Name())
		inode, socket := strings.CutPrefix(link, "socket:[")
		if err == nil && socket && inodes[strings.TrimSuffix(inode, "]")] {
			return true
		}
	}
	return false
}

// listening returns the inodes of the sockets in /proc/net/tcp that listen on a port.
func listening(text []byte, port int) (inodes []string) {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		const listen = "0A"
		if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == listen {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
