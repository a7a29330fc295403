package doctor

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// Listen answers doctors on other hosts that were started with --peer, at an address,
// until ctx is done. ready is called with the port. It tells the time, takes and sends
// bytes, and connects to a host that asks for it, at a port of that host; nothing else.
func Listen(ctx context.Context, addr string, ready func(port int)) error {
	l, err := listen(addr, anybody, Real())
	if err != nil {
		return err
	}
	defer l.stop()
	ready(l.port())
	<-ctx.Done()
	return nil
}

// checkPeer tries the network between this host and one where a doctor listens. What it
// finds is judged as if two hosts had met, of which the other has found nothing.
func (d *doctor) checkPeer(ctx context.Context) []Line {
	c := caller{d.System, d.Peer, anybody}
	host, _, _ := net.SplitHostPort(d.Peer)
	f := c.probe(ctx)
	f.To = 1
	if f.Problem != "" {
		return []Line{failure(fmt.Sprintf("%s: %s", d.Peer, f.Problem),
			"run `muster doctor --listen` there, and let TCP to that port through").as("peer")}
	}
	lines := []Line{ok("%s can be reached; a round trip takes %s", d.Peer, round(f.Trip)).as("peer"),
		d.checkBack(ctx, c, host)}
	found := result{Findings: []finding{f}}
	if f.Stuck == "" {
		select {
		case <-d.quiet:
			flow := c.measure(ctx)
			flow.To = 1
			found.Flow = &flow
		case <-ctx.Done():
		}
	}
	v := newVerdict(d.Peer, []*hostInfo{{Name: d.hostname, Addrs: []place{{}}},
		{Name: host, Addrs: []place{{Addr: host}}}}, []*result{&found, nil})
	lines = append(lines, v.packets()...)
	if err := c.source(ctx, bulk, bulkLimit); err != nil {
		lines = append(lines, failure(fmt.Sprintf("1 MiB from %s to this host does not arrive: %s", host, why(err)),
			"run doctor the other way round (--listen here, --peer there): it finds out the size of packets that "+
				"passes").as("MTU"))
	}
	return slices.Concat(lines, v.clocks(), v.speed())
}

// checkBack has the other host connect to this one.
func (d *doctor) checkBack(ctx context.Context, c caller, host string) Line {
	// The one that connects is the other host's doctor. That it can is the result.
	l, err := listen(":0", anybody, d.System)
	if err != nil {
		return failure(err.Error(), "").as("connect back")
	}
	defer l.stop()
	var answer string
	conn, err := c.request(ctx, 0, dialLimit+time.Second, "back "+strconv.Itoa(l.port()))
	if err == nil {
		defer conn.Close()
		answer, err = readLine(bufio.NewReaderSize(conn, maxLine))
	}
	if err != nil {
		answer = why(err)
	}
	if answer == "ok" {
		return ok("%s reaches this host", host).as("connect back")
	}
	return failure(fmt.Sprintf("this host reaches %s, but %s cannot reach this host: %s: a firewall that lets one "+
		"direction through", host, host, text.Line(answer, 200)),
		allow(host, d.hostname)).as("connect back")
}
