package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"
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
	switch {
	case errors.As(e.Err, &stranger):
		return stranger.advice()
	case errors.As(e.Err, &dns):
		return "check the host name, and that this machine's resolver or /etc/hosts knows it"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "check that the process that hosts the store is running there and that the port is the same"
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		return "check that the host is up and that no firewall drops the port"
	case errors.Is(e.Err, syscall.ENETUNREACH), errors.Is(e.Err, syscall.EHOSTUNREACH):
		return "check the route from this machine to that address"
	}
	return "check the address"
}

// A dialer makes connections to a server.
type dialer struct {
	addr    string
	timeout time.Duration
	slow    time.Duration // what a first attempt may take before that is logged
	sockets net.Dialer
	onRetry func(*ConnectError, time.Duration)
	log     *slog.Logger
}

func newDialer(cfg ClientConfig) *dialer {
	d := &dialer{addr: cfg.Addr, timeout: cfg.Timeout, slow: slowAttempt, onRetry: cfg.OnRetry, log: cfg.Logger, sockets: keepAlive(cfg.KeepAlive).dialer()}
	if d.timeout == 0 {
		d.timeout = DefaultTimeout
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	return d
}

// An opener makes a new connection ready for use.
type opener func(ctx context.Context, nc net.Conn) error

// dial makes a connection and opens it. It tries again as Dial says.
func (d *dialer) dial(ctx context.Context, open opener) (net.Conn, error) {
	start := time.Now()
	giveUp, cancel := context.WithDeadline(ctx, start.Add(d.timeout))
	defer cancel()
	failure := &ConnectError{Addr: d.addr}
	host, port, err := net.SplitHostPort(d.addr)
	if err != nil {
		failure.Err = err
		return nil, failure
	}
	slow := time.AfterFunc(d.slow, func() {
		d.log.Info("tcpstore: no answer yet, waiting on", "addr", d.addr, "timeout", d.timeout)
	})
	defer slow.Stop()
	delay := firstDelay
	for closed := 0; ; {
		failure.Attempts++
		var nc net.Conn
		nc, failure.IPs, err = d.attempt(giveUp, host, port, open)
		if err == nil {
			return nc, nil
		}
		if errors.Is(err, ErrNoSession) {
			return nil, fmt.Errorf("tcpstore: %s: %w", d.addr, err)
		}
		// A second time, since a server that is being reset closes once.
		if stranger, ok := errors.AsType[*NotStoreError](err); ok && stranger.closed {
			if closed++; closed == 2 && d.speaksTLS(giveUp, stranger.Remote) {
				err = &NotStoreError{Remote: stranger.Remote, Saw: sawTLS, final: true}
			}
		}
		// The system may see the deadline a moment before the context does.
		timeUp := giveUp.Err() != nil || time.Since(start) >= d.timeout
		if !timeUp || failure.Err == nil || weight(err) > weight(failure.Err) {
			failure.Err = err // not merely that the time was up
		}
		failure.After = time.Since(start)
		if !retry(err) && giveUp.Err() == nil {
			return nil, failure
		}
		if failure.Attempts == 1 && giveUp.Err() == nil && slow.Stop() {
			d.log.Info("tcpstore: no answer yet, trying on", "addr", d.addr, "ips", failure.IPs, "err", err, "timeout", d.timeout)
		}
		if d.onRetry != nil && giveUp.Err() == nil {
			d.onRetry(failure, d.timeout-failure.After)
		}
		pause := time.NewTimer(time.Duration((0.5 + rand.Float64()) * float64(delay)))
		select {
		case <-pause.C:
		case <-giveUp.Done():
			pause.Stop()
			failure.After = time.Since(start)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), failure)
			}
			return nil, failure
		}
		delay = min(time.Duration(float64(delay)*delayFactor), mostDelay)
	}
}

// retry reports whether the error may be gone in a while.
func retry(err error) bool {
	if stranger, ok := errors.AsType[*NotStoreError](err); ok {
		return !stranger.final
	}
	var dns *net.DNSError
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.As(err, &dns) || errors.As(err, &timeout) && timeout.Timeout()
}

// weight says how much an error explains: more where something answered.
func weight(err error) int {
	stranger, ok := errors.AsType[*NotStoreError](err)
	switch {
	case ok && stranger.final:
		return 3
	case ok:
		return 2
	case retry(err):
		return 1
	}
	return 0
}

// attempt resolves the host and tries its addresses in turn, IPv6 first.
func (d *dialer) attempt(ctx context.Context, host, port string, open opener) (nc net.Conn, ips []string, err error) {
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, nil, err
	}
	var sorted []string
	for _, a := range addrs {
		if a.IP.To4() == nil {
			sorted = append(sorted, a.String())
		}
	}
	for _, a := range addrs {
		if a.IP.To4() != nil {
			sorted = append(sorted, a.String())
		}
	}
	if len(sorted) == 0 {
		return nil, nil, &net.DNSError{Err: "no address", Name: host}
	}
	for _, ip := range sorted {
		nc, one := d.sockets.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		if one == nil {
			if one = open(ctx, nc); one == nil {
				return nc, sorted, nil
			}
			nc.Close()
		}
		if errors.Is(one, ErrNoSession) {
			return nil, sorted, one
		}
		if err == nil || weight(one) > weight(err) {
			err = one
		}
	}
	return nil, sorted, err
}
