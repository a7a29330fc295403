package doctor

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/text"
)

// Listen answers doctors on other hosts that were started with --peer, at an address,
// until ctx is done. ready is called with the port. It tells the time, takes and sends
// bytes, and connects to whoever asks it, at a port of his; nothing else.
func Listen(ctx context.Context, addr string, s System, ready func(port int)) error {
	l, err := listen(addr, anybody, s)
	if err != nil {
		return err
	}
	defer l.close()
	ready(l.port())
	<-ctx.Done()
	return nil
}

// checkPeer tries the network between this host and one where a doctor listens.
func (d *doctor) checkPeer(ctx context.Context) []Line {
	c := caller{d, d.Peer, anybody}
	host, _, _ := net.SplitHostPort(d.Peer)
	var f finding
	var err error
	if f.Trip, f.Offset, err = c.ping(ctx); err != nil {
		return []Line{failure(fmt.Sprintf("%s: %s", d.Peer, why(err)), "run `muster doctor --listen` there, and let TCP to that port through").as("peer")}
	}
	lines := []Line{ok("%s can be reached; a round trip takes %s", d.Peer, round(f.Trip)).as("peer"), d.checkBack(ctx, c, host)}
	cards := []*card{{Name: d.hostname, Addrs: []place{{}}}, {Name: host, Addrs: []place{{Addr: host}}}}
	if err := c.sink(ctx, 0, bulk, bulkLimit); err != nil {
		f.Stuck, f.Passes = why(err), c.passing(ctx)
	}
	f.To = 1
	found := result{Findings: []finding{f}}
	if f.Stuck == "" {
		select {
		case <-d.quiet:
			fl := c.measure(ctx)
			fl.To = 1
			found.Flow = &fl
		case <-ctx.Done():
		}
	}
	j := &verdict{endpoint: d.Peer, cards: cards, results: []*result{&found, nil}, names: uniqueNames(cards)}
	lines = append(lines, j.packets()...)
	if err := c.source(ctx, bulk, bulkLimit); err != nil {
		lines = append(lines, failure(fmt.Sprintf("1 MiB from %s to this host does not arrive: %s", host, why(err)), "run doctor the other way round (--listen here, --peer there): it finds out the size of packets that passes").as("MTU"))
	}
	lines = append(lines, j.clocks()...)
	return append(lines, j.speed()...)
}

// checkBack has the other host connect to this one.
func (d *doctor) checkBack(ctx context.Context, c caller, host string) Line {
	// Whoever connects is the other host's doctor; that it could is all.
	l, err := listen(":0", anybody, d.System)
	if err != nil {
		return failure(err.Error(), "").as("connect back")
	}
	defer l.close()
	answer := "no answer"
	conn, err := c.request(ctx, 0, dialLimit+time.Second, "back "+strconv.Itoa(l.port()))
	if err == nil {
		defer conn.Close()
		answer, err = readAnswer(conn)
	}
	if err != nil {
		answer = why(err)
	}
	if answer == "ok" {
		return ok("%s reaches this host", host).as("connect back")
	}
	return failure(fmt.Sprintf("this host reaches %s, but %s cannot reach this host: %s: a firewall that lets one direction through", host, host, text.Line(answer, 200)),
		allow(host, d.hostname)).as("connect back")
}
