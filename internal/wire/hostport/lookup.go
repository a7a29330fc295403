package hostport

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// lookupLimit bounds what the system's own resolver may take.
const lookupLimit = 5 * time.Second

// Lookup returns the IP addresses of a name or address, in the order in which they are to be
// tried. Names that Go's resolver does not know, from /etc/hosts and DNS, are asked of the system's by
// getent: it may know them by mDNS, NIS, LDAP or nss_slurm. The error is that of Go's resolver.
func Lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err == nil || ctx.Err() != nil || name == "" || strings.HasPrefix(name, "-") {
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		return addrs, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "getent", "ahosts", name)
	cmd.WaitDelay = time.Second
	out, failed := cmd.Output()
	if failed != nil {
		return nil, err
	}
	for line := range bytes.Lines(out) {
		if words := bytes.Fields(line); len(words) > 0 {
			if addr, bad := netip.ParseAddr(string(words[0])); bad == nil && !slices.Contains(addrs, addr.Unmap()) {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	if len(addrs) == 0 {
		return nil, err
	}
	return addrs, nil
}
