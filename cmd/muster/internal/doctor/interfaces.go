package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// chosen are the variables that name the interface of a library's connections.
var chosen = [...]struct{ env, library string }{
	{"GLOO_SOCKET_IFNAME", "Gloo"},
	{"NCCL_SOCKET_IFNAME", "NCCL"},
}

// checkInterfaces looks at the interfaces that the job would use.
func (d *doctor) checkInterfaces(context.Context) []Line {
	if _, err := d.System.Interfaces(); err != nil {
		return []Line{warning("cannot list network interfaces: "+err.Error(), "")}
	}
	var lines []Line
	for _, c := range chosen {
		if text, set := d.System.Lookup(c.env); set && text != "" {
			lines = append(lines, d.checkChosen(c.env, c.library, text))
		}
	}
	if d.LocalAddr != "" {
		if addr, err := netip.ParseAddr(d.LocalAddr); err == nil && d.interfaceOf(addr).Name == "" {
			lines = append(lines, d.worse(fmt.Sprintf("--local-addr=%s is not an address of this host (%s)",
				d.LocalAddr, d.addresses()), "name one of this host's, or leave the option out"))
		}
	}
	switch {
	case lines != nil:
		return lines
	case len(d.ownRoutable()) == 0:
		return []Line{d.worse("this host has no address but loopback ones", "bring an interface up: ip link set dev NAME up")}
	}
	return []Line{ok("%s", d.addresses())}
}

// checkChosen looks at what a variable names.
func (d *doctor) checkChosen(env, library, text string) Line {
	found := matching(d.ifaces, env, text)
	set := env + "=" + text
	fix := "set " + env + "=" + d.firstInterface() + ", or unset it"
	switch {
	case len(found) == 0:
		return failure(fmt.Sprintf("%s: there is no such interface; this host has %s", set, d.addresses()), fix)
	case !found[0].Up:
		return failure(set+": the interface is down", "ip link set dev "+found[0].Name+" up, or "+fix)
	case len(found[0].Addrs) == 0:
		return failure(set+": the interface has no address", fix)
	case found[0].Loopback && d.many():
		return failure(fmt.Sprintf("%s: %s is the loopback interface, by which no other host can be reached",
			set, found[0].Name), fix)
	}
	return ok("%s: %s uses %s", set, library, found[0].Addrs[0])
}

// matching lists the interfaces that a variable names. Gloo takes a name, or several
// with commas between; NCCL prefixes, =NAME for a whole name and ^ for all others.
// Source: NCCL's and torch's documentation of the variables.
func matching(all []Interface, env, text string) (found []Interface) {
	exact, not := env == "GLOO_SOCKET_IFNAME", false
	if !exact {
		text, not = strings.CutPrefix(text, "^")
		text, exact = strings.CutPrefix(text, "=")
	}
	hit := func(i Interface) bool {
		for name := range strings.SplitSeq(text, ",") {
			// NCCL writes a port behind a colon, which does not matter here.
			name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
			if name != "" && (i.Name == name || !exact && strings.HasPrefix(i.Name, name)) {
				return true
			}
		}
		return false
	}
	for _, i := range all {
		if hit(i) != not {
			found = append(found, i)
		}
	}
	if not { // with ^, NCCL prefers what reaches other hosts
		for k, i := range found {
			if i.Up && !i.Loopback && len(i.Addrs) > 0 {
				return found[k:]
			}
		}
	}
	return found
}

// addresses lists the interfaces that are up, with their addresses.
func (d *doctor) addresses() string {
	var texts []string
	for _, i := range d.ifaces {
		if i.Up && !i.Loopback && len(i.Addrs) > 0 {
			texts = append(texts, fmt.Sprintf("%s %s", i.Name, join(i.Addrs)))
		}
	}
	if texts == nil {
		return "no interface but loopback"
	}
	const most = 6
	if len(texts) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], "; "), len(texts)-most)
	}
	return strings.Join(texts, "; ")
}
