package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/hostport"
)

// Delays between two attempts to connect: each ±50 %. PyTorch's client begins with
// 500 ms and goes up to a minute, so that a host that comes first may notice the
// next one a minute late.
// Source: ExponentialBackoffWithJitter in TCPStore.cpp.
const (
	firstDelay  = 10 * time.Millisecond
	delayFactor = 1.5
	mostDelay   = 2 * time.Second
)

// slowAttempt is how long a server may stay silent before the client says so.
const slowAttempt = 5 * time.Second

// A ConnectError says why no connection could be made.
type ConnectError struct {
	Addr     string        // Addr is host:port as given
	IPs      []string      // IPs are what the host resolved to, if it did
	Attempts int           // Attempts is how often it was tried
	After    time.Duration // After is how long it was tried
	Err      error         // Err is what went wrong the last time
}

func (e *ConnectError) Error() string {
	to := e.Addr
	if len(e.IPs) > 0 {
		to += " (" + strings.Join(e.IPs, ", ") + ")"
	}
	times := ""
	if e.Attempts > 1 {
		times = fmt.Sprintf(", tried %d times in %v", e.Attempts, e.After.Round(time.Millisecond))
	}
	return fmt.Sprintf("tcpstore: connect to %s: %v%s; %s", to, e.Err, times, e.advice())
}

func (e *ConnectError) Unwrap() error { return e.Err }

func (e *ConnectError) advice() string {
	var dns *net.DNSError
	var timeout net.Error
	var stranger *NotStoreError
	var guard interface {
		error
		Advice() string
	}
	switch {
	case errors.As(e.Err, &stranger):
		return stranger.advice()
	case errors.As(e.Err, &guard):
		return guard.Advice()
	case errors.As(e.Err, &dns):
		return "check the host name, and that this machine's resolver or /etc/hosts knows it"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "check that the process that hosts the store is running there and that the port is the same"
	case errors.Is(e.Err, errSilent):
		return "check that the host is up, that no firewall drops the port, and that a TCPStore of PyTorch 2 or muster " +
			"listens there"
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		return "check that the host is up and that no firewall drops the port"
	case unreachable(e.Err):
		return "check that the host is up and the route from this machine to that address"
	}
	return "check the address"
}

// A dialer makes connections to a server.
type dialer struct {
	addr    string
	timeout time.Duration
	guard   Guard
	slow    time.Duration // what an attempt may take before that is told, time and again
	sockets net.Dialer
	onRetry func(*ConnectError, time.Duration)
	refused bool // a server that refuses connections is not tried again
	log     *slog.Logger
}

func newDialer(cfg ClientConfig) *dialer {
	return &dialer{addr: cfg.Addr, timeout: cmp.Or(cfg.Timeout, defaultTimeout), guard: cfg.Guard, slow: slowAttempt,
		onRetry: cfg.OnRetry, log: cmp.Or(cfg.Logger, slog.Default()), sockets: keepAlive(cfg.KeepAlive).dialer()}
}

// An opener makes a new connection ready for use.
type opener func(ctx context.Context, nc net.Conn) error

// dial makes a connection and opens it. It tries again as Dial says.
func (d *dialer) dial(ctx context.Context, open opener) (net.Conn, error) {
	start := time.Now()
	giveUp, cancel := context.WithDeadline(ctx, start.Add(d.timeout))
	defer cancel()
	failure := &ConnectError{Addr: d.addr}
	delay := firstDelay
	for closed, told := 0, false; ; {
		failure.Attempts++
		nc, ips, err := d.patiently(giveUp, open, start, &told)
		failure.IPs = ips
		if err == nil {
			return nc, nil
		}
		if errors.Is(err, ErrNoSession) {
			return nil, fmt.Errorf("tcpstore: %s: %w", d.addr, err)
		}
		// A second time, since a server that is being reset closes once.
		if stranger, ok := errors.AsType[*NotStoreError](err); ok && stranger.closed {
			if closed++; closed == 2 {
				err = cmp.Or(d.recognize(giveUp, stranger), err)
			}
		}
		// The system may see the deadline a moment before the context does.
		timeUp := giveUp.Err() != nil || time.Since(start) >= d.timeout
		if !timeUp || failure.Err == nil || weight(err) > weight(failure.Err) {
			failure.Err = err // not merely that the time was up
		}
		failure.After = time.Since(start)
		final := !retry(err) || d.refused && errors.Is(err, syscall.ECONNREFUSED)
		if final && giveUp.Err() == nil {
			return nil, failure
		}
		if !told && giveUp.Err() == nil {
			told = true
			d.log.Info("tcpstore: no answer yet, trying on",
				"addr", d.addr, "ips", failure.IPs, "err", err, "timeout", d.timeout)
		}
		if d.onRetry != nil && giveUp.Err() == nil {
			d.onRetry(failure, d.timeout-failure.After)
		}
		if sleep.For(giveUp, time.Duration((0.5+rand.Float64())*float64(delay))) != nil {
			failure.After = time.Since(start)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), failure)
			}
			return nil, failure
		}
		delay = min(time.Duration(float64(delay)*delayFactor), mostDelay)
	}
}

// recognize finds out what a server is that has closed the connection, nil if it does not show.
func (d *dialer) recognize(ctx context.Context, stranger *NotStoreError) error {
	saw := ""
	if d.guard != nil {
		saw = d.servesAll(ctx, stranger.Remote)
	} else if d.speaksTLS(ctx, stranger.Remote) {
		saw = sawTLS
	}
	if saw == "" {
		return nil
	}
	return &NotStoreError{Remote: stranger.Remote, Saw: saw, final: true}
}

// errSilent is what is known of an attempt that continues.
var errSilent = errors.New("no answer yet")

// patiently is attempt, which says now and then that it has had no answer: in the log
// unless that is told of. The attempt stays on the caller's thread, which may be in a
// network of its own.
func (d *dialer) patiently(ctx context.Context, open opener, start time.Time, told *bool) (net.Conn, []string, error) {
	trying, stop := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() {
		for sleep.For(trying, d.slow) == nil {
			if !*told {
				*told = true
				d.log.Info("tcpstore: no answer yet, waiting on", "addr", d.addr, "timeout", d.timeout)
			}
			if after := time.Since(start); d.onRetry != nil {
				d.onRetry(&ConnectError{Addr: d.addr, Attempts: 1, After: after, Err: errSilent}, d.timeout-after)
			}
		}
	})
	defer teller.Wait()
	defer stop()
	return d.attempt(ctx, open, time.Since(start))
}

// retry reports whether the error may be gone in a while.
func retry(err error) bool {
	if stranger, ok := errors.AsType[*NotStoreError](err); ok {
		return !stranger.final
	}
	var dns *net.DNSError
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || unreachable(err) ||
		errors.As(err, &dns) || errors.As(err, &timeout) && timeout.Timeout()
}

// unreachable reports whether there is no way to the host: it is not up yet, or a
// link is down.
func unreachable(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EHOSTDOWN) || errors.Is(err, syscall.ENETDOWN)
}

// weight says how much an error explains: more where something answered.
func weight(err error) int {
	stranger, ok := errors.AsType[*NotStoreError](err)
	switch {
	case ok && stranger.final:
		return 3
	case ok:
		return 2
	case retry(err) && !unreachable(err):
		return 1
	}
	return 0
}

// headStart is how long an address has before the next one is tried beside it.
const headStart = 250 * time.Millisecond

// leastPatience is how long the others may take at least when one address has failed. It
// grows with the time that dial has taken, for servers that are slow.
const leastPatience = time.Second

// attempt resolves the addresses that the dialer was given and tries all IPs: each a
// moment after the one before, or when that has failed, so that one from which nothing
// comes back, as where only the hosts' IPv4 works, costs no more than that
// moment. The first that is open is taken.
//
// When one has failed the others have some patience left before all are tried anew: what
// listens on one in a moment is not waited for on another.
func (d *dialer) attempt(ctx context.Context, open opener, patience time.Duration) (
	nc net.Conn, ips []string, err error,
) {
	addrs, ips, err := resolve(ctx, d.addr)
	if err != nil {
		return nil, nil, err
	}
	if len(addrs) == 1 {
		one := d.try(ctx, addrs[0], open)
		return one.nc, ips, one.err
	}
	nc, err = d.race(ctx, addrs, open, max(patience, leastPatience))
	return nc, ips, err
}

// A tried address has a connection or an error.
type tried struct {
	at  int
	nc  net.Conn
	err error
}

func (d *dialer) try(ctx context.Context, addr string, open opener) tried {
	raw, err := d.sockets.DialContext(ctx, "tcp", addr)
	if err != nil {
		return tried{err: err}
	}
	nc := raw
	if d.guard != nil {
		start := time.Now()
		if nc, err = d.prove(ctx, raw); err != nil {
			if failure := unanswered(raw, start, err); failure != nil {
				err = failure
			}
		}
	}
	if err == nil {
		if err = open(ctx, nc); err == nil {
			return tried{nc: nc}
		}
	}
	raw.Close()
	return tried{err: err}
}

// guardSilence is how long a server may take to prove itself before it is asked whether it is
// one for everybody.
const guardSilence = 2 * time.Second

// prove lets both ends of a connection prove themselves. PyTorch's server does not answer what
// it does not know: one that says nothing for a while is asked as everybody asks.
func (d *dialer) prove(ctx context.Context, raw net.Conn) (nc net.Conn, err error) {
	remote := raw.RemoteAddr().String()
	proving, giveUp := context.WithCancel(ctx)
	defer giveUp()
	asking, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() { // it alone has nc and err until ended is closed, so every way out waits for that
		defer close(ended)
		nc, err = given(d.guard.Connect(proving, raw))
		stop()
	}()
	silent := time.NewTimer(guardSilence)
	defer silent.Stop()
	select {
	case <-ended:
		return nc, err
	case <-silent.C:
	}
	if saw := d.servesAll(asking, remote); saw != "" {
		giveUp()
		<-ended
		return nil, &NotStoreError{Remote: remote, Saw: saw, final: true}
	}
	<-ended
	return nc, err
}

// race tries addresses one after the other, without waiting long for any of them. If
// none is open, it returns the error that explains most.
func (d *dialer) race(ctx context.Context, addrs []string, open opener, patience time.Duration) (
	nc net.Conn, err error,
) {
	ctx, cancel := context.WithCancel(ctx)
	ends := make(chan tried)
	started, ended, errs := 0, 0, make([]error, len(addrs))
	stop := func() { // waits for all that have started, so that no connection and no goroutine is left
		cancel()
		for ; ended < started; ended++ {
			late := <-ends
			if late.nc != nil {
				late.nc.Close()
			}
			errs[late.at] = late.err // how long it was silent
		}
	}
	defer stop()
	next := time.NewTimer(0)
	defer next.Stop()
	var enough <-chan time.Time
wait:
	for ended < len(addrs) {
		select {
		case <-enough:
			break wait
		case <-next.C:
			if at := started; at < len(addrs) {
				started++
				go func() {
					end := d.try(ctx, addrs[at], open)
					end.at = at
					ends <- end
				}()
				next.Reset(headStart)
			}
		case end := <-ends:
			ended++
			if end.err == nil || errors.Is(end.err, ErrNoSession) {
				return end.nc, end.err
			}
			errs[end.at] = end.err
			next.Reset(0)
			if enough == nil {
				enough = time.After(patience)
			}
		}
	}
	stop()
	for _, one := range errs {
		if one != nil && (err == nil || weight(one) > weight(err)) {
			err = one
		}
	}
	return nil, err
}

// resolve returns the IP addresses of a list of host:port, with and without ports, in the order
// that the resolver prefers (RFC 6724). The error is that of the last one, if none is known, or
// says what is wrong with the list.
func resolve(ctx context.Context, list string) (addrs, ips []string, err error) {
	for addr := range strings.SplitSeq(list, ",") {
		host, service, wrong := net.SplitHostPort(addr)
		if wrong != nil {
			return nil, nil, wrong
		}
		port, unknown := net.DefaultResolver.LookupPort(ctx, "tcp", service)
		found, one := hostport.Lookup(ctx, host)
		if err = cmp.Or(one, unknown); err != nil {
			continue
		}
		for _, ip := range found {
			addrs = append(addrs, netip.AddrPortFrom(ip, uint16(port)).String())
			if ip := ip.String(); !slices.Contains(ips, ip) {
				ips = append(ips, ip)
			}
		}
	}
	switch {
	case len(addrs) > 0:
		err = nil
	case err == nil:
		err = &net.DNSError{Err: "no address", Name: list}
	}
	return addrs, ips, err
}
