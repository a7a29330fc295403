package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"syscall"

	"github.com/muster-run/muster/internal/wire/hostport"
)

// checkPort sees whether the endpoint's port is free on this host.
func (d *doctor) checkPort(ctx context.Context) Line {
	err := d.System.TryBind(d.Settings.Bind, d.Port)
	next := d.Port + 1
	if next > math.MaxUint16 {
		next = d.Port - 1
	}
	other := fmt.Sprintf("choose another port for --rdzv-endpoint (on all hosts), for example %s:%d", d.Host, next)
	switch {
	case err == nil:
		return ok("%d is free on this host, where the hosts will meet", d.Port)
	case errors.Is(err, syscall.EADDRINUSE):
		holder := hostport.Holder(d.System.Root, d.Port)
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

// tryBind sees whether a program could listen at a port of an address, "" for all. It
// does not listen itself, since other hosts would take it for the rendezvous.
func tryBind(host string, port int) error {
	held, err := hostport.Reserve(host, port)
	if err != nil {
		return err
	}
	return held.Close()
}
