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

	"github.com/muster-run/muster/internal/hostport"
)

// checkPort sees whether the endpoint's port is free on this host.
func (d *doctor) checkPort(ctx context.Context) Line {
	err := d.System.TryBind(d.Settings.Bind, d.Port)
	other := fmt.Sprintf("choose another port for --rdzv-endpoint (on all hosts), for example %s:%d", d.Host, d.Port+1)
	switch {
	case err == nil:
		return ok("%d is free on this host, where the hosts will meet", d.Port)
	case errors.Is(err, syscall.EADDRINUSE):
		holder := d.holder(d.Port)
		what, store := d.identify(ctx, net.JoinHostPort("localhost", strconv.Itoa(d.Port)))
		text := fmt.Sprintf("%d is in use on this host, the endpoint, by %s: %s", d.Port, holder, what)
		if store && d.Settings.IsHost == nil {
			return warning(text, "right if it is the store of this job (muster store, or an agent of it); otherwise "+other)
		}
		return failure(text, "end it, or "+other)
	case errors.Is(err, syscall.EACCES):
		return failure(fmt.Sprintf("%d: this user may not listen there: %v", d.Port, cause(err)),
			"ports below 1024 are root's; "+other)
	}
	return failure(fmt.Sprintf("cannot listen at %s: %v", net.JoinHostPort(d.Settings.Bind, strconv.Itoa(d.Port)), err),
		other+"; check bind= of --rdzv-conf")
}

// listening is the state of a socket that listens. Source: net/tcp_states.h.
const listening = "0A"

// holder names the processes that listen on a port, as far as this user may know.
func (d *doctor) holder(port int) string {
	var sockets []string
	for _, name := range []string{"proc/self/net/tcp", "proc/self/net/tcp6"} {
		text, _ := fs.ReadFile(d.System.Root, name)
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
	procs, _ := fs.ReadDir(d.System.Root, "proc")
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil && d.holds(p.Name(), sockets) {
			comm, _ := fs.ReadFile(d.System.Root, "proc/"+p.Name()+"/comm")
			found = append(found, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm))))
		}
	}
	slices.Sort(found)
	return cmp.Or(strings.Join(found, ", "), "a process of another user or container")
}

// holds reports whether a process has one of some sockets open.
func (d *doctor) holds(pid string, sockets []string) bool {
	fds, _ := fs.ReadDir(d.System.Root, "proc/"+pid+"/fd")
	return slices.ContainsFunc(fds, func(fd fs.DirEntry) bool {
		link, err := fs.ReadLink(d.System.Root, "proc/"+pid+"/fd/"+fd.Name())
		return err == nil && slices.Contains(sockets, link)
	})
}

// tryBind sees whether a program could listen at a port of an address, "" for all. It
// does not listen itself, since other hosts would take it for the rendezvous.
func tryBind(host string, port int) error {
	held, err := hostport.Reserve(host, port)
	if err != nil {
		return err
	}
	return held.Close()
}
