package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// resolveLimit is how long one name may take.
	resolveLimit = 8 * time.Second
	// slowResolve is worth a warning: every connection begins with a name.
	slowResolve = time.Second
)

// checkNames looks up this host's name and the endpoint's.
func (d *doctor) checkNames(ctx context.Context) []Line {
	name, err := d.System.Hostname()
	if err != nil {
		return []Line{failure("this host has no name: "+err.Error(), "set one with hostnamectl set-hostname NAME")}
	}
	lines := []Line{d.checkOwnName(ctx, name)}
	if d.Host != "" && d.Host != name {
		lines = append(lines, d.checkEndpointName(ctx)...)
	}
	return lines
}

// resolve looks a name up, and says how long that took.
func (d *doctor) resolve(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	start := time.Now()
	addrs, err := d.System.LookupHost(ctx, name)
	return addrs, time.Since(start), err
}

func (d *doctor) checkOwnName(ctx context.Context, name string) Line {
	addrs, took, err := d.resolve(ctx, name)
	good := d.ownRoutable()
	if err != nil {
		fix := fmt.Sprintf("add it to DNS or to /etc/hosts (%s %s); Gloo looks its own host's name up unless "+
			"GLOO_SOCKET_IFNAME names an interface", first(good, "ADDRESS"), name)
		return d.worse(fmt.Sprintf("this host's own name %s cannot be resolved: %s",
			name, whyUnresolved(took, err)), fix)
	}
	loopback := slices.IndexFunc(addrs, netip.Addr.IsLoopback)
	other := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !a.IsLoopback() && d.interfaceOf(a).Name == "" })
	switch {
	case loopback >= 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsLoopback() }) && d.many():
		return failure(fmt.Sprintf("this host's own name %s is %s, a loopback address: Gloo would tell the other hosts "+
			"to connect to themselves", name, addrs[loopback]),
			fmt.Sprintf("in /etc/hosts, give %s the address %s instead, or set GLOO_SOCKET_IFNAME=%s",
				name, first(good, "of its interface"), d.firstInterface()))
	case other >= 0:
		return d.worse(fmt.Sprintf("this host's own name %s is %s, which no interface of it has", name, addrs[other]),
			"correct the entry in DNS or /etc/hosts; behind NAT or in a container, set GLOO_SOCKET_IFNAME and --local-addr")
	case took > slowResolve:
		return warning(fmt.Sprintf("it took %s to resolve this host's own name %s", round(took), name), slowAdvice)
	}
	return ok("%s is %s (%s)", name, join(addrs), round(took))
}

const slowAdvice = "look at the name servers in /etc/resolv.conf: probably the first does not answer"

// checkEndpointName looks up the endpoint's name; an address has only to be of use.
func (d *doctor) checkEndpointName(ctx context.Context) []Line {
	addr, err := netip.ParseAddr(strings.Trim(d.Host, "[]"))
	switch {
	case err == nil && addr.IsLoopback() && d.many():
		return d.loopbackEndpoint(addr.String())
	case d.Host == "localhost" && d.many():
		return d.loopbackEndpoint("this host")
	case err == nil || d.Host == "localhost":
		return nil
	}
	addrs, took, err := d.resolve(ctx, d.Host)
	switch {
	case err != nil:
		return []Line{failure(fmt.Sprintf("the endpoint's name %s cannot be resolved: %s",
			d.Host, whyUnresolved(took, err)),
			"check its spelling and the name servers in /etc/resolv.conf, add it to /etc/hosts, or give the endpoint's address")}
	case slices.ContainsFunc(addrs, netip.Addr.IsLoopback) && d.many():
		return []Line{warning(fmt.Sprintf("the endpoint %s is %s here, a loopback address", d.Host, join(addrs)),
			"muster's agents can do with that if this is that host, but torch's cannot: remove the name from the 127.* "+
				"lines of /etc/hosts")}
	case !d.sharesFamily(addrs):
		return []Line{failure(fmt.Sprintf("the endpoint %s has the address %s, but this host has none of that kind (%s)",
			d.Host, join(addrs), d.addresses()),
			"give the endpoint a name or an address of the kind that all hosts have, IPv4 or IPv6")}
	case took > slowResolve:
		return []Line{warning(fmt.Sprintf("it took %s to resolve the endpoint's name %s", round(took), d.Host), slowAdvice)}
	}
	return []Line{ok("the endpoint %s is %s (%s)", d.Host, join(addrs), round(took))}
}

func (d *doctor) loopbackEndpoint(what string) []Line {
	return []Line{failure(fmt.Sprintf("the endpoint %s means %s on every host: each would wait alone for the others",
		d.Host, what),
		"name one host, for example --rdzv-endpoint="+d.hostname)}
}

// whyUnresolved says why a name could not be looked up.
func whyUnresolved(took time.Duration, err error) string {
	why := err.Error()
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case isDNS && dns.IsTimeout, !isDNS && errors.Is(err, context.DeadlineExceeded):
		why = "no name server answers (waited " + round(took) + ")"
	case isDNS && dns.IsNotFound:
		why = "no such host"
	case isDNS:
		why = dns.Err
		if dns.Server != "" {
			why += " (name server " + dns.Server + ")"
		}
	}
	return why
}

// ownRoutable lists this host's addresses that others can reach, IPv4 first.
func (d *doctor) ownRoutable() []netip.Addr {
	var list []netip.Addr
	for _, i := range d.ifaces {
		for _, a := range i.Addrs {
			if i.Up && !i.Loopback && a.IsGlobalUnicast() {
				list = append(list, a)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return list
}

// firstInterface names one that reaches other hosts.
func (d *doctor) firstInterface() string {
	if own := d.ownRoutable(); len(own) > 0 {
		return d.interfaceOf(own[0]).Name
	}
	return "INTERFACE"
}

// sharesFamily reports whether this host has an address of the kind of one of addrs.
func (d *doctor) sharesFamily(addrs []netip.Addr) bool {
	own := d.ownRoutable()
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return a.IsLoopback() || slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	})
}

func first(addrs []netip.Addr, without string) string {
	if len(addrs) == 0 {
		return without
	}
	return addrs[0].String()
}

func join(addrs []netip.Addr) string {
	var texts []string
	for _, a := range addrs {
		if text := a.String(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ", ")
}

// round shortens a duration for people.
func round(t time.Duration) string {
	switch {
	case t < time.Millisecond:
		return strings.Replace(t.Round(time.Microsecond).String(), "\u00b5", "u", 1) // consoles may be ASCII
	case t < time.Second:
		return t.Round(100 * time.Microsecond).String()
	}
	return t.Round(100 * time.Millisecond).String()
}
