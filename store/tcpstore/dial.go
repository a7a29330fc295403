package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"
)

// Delays between two attempts to connect: each ±50 %.
// Source: ExponentialBackoffWithJitter in TCPStore.cpp.
const (
	firstDelay  = 500 * time.Millisecond
	delayFactor = 1.5
	mostDelay   = 60 * time.Second
)

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
	switch {
	case errors.As(e.Err, &dns):
		return "check the host name, and that this machine's resolver or /etc/hosts knows it"
	case errors.Is(e.Err, errHandshake):
		return "check that a TCPStore of PyTorch 2 or muster listens at that port and not another service"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "check that the process that hosts the store is running there and that the port is the same"
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		return "check that the host is up and that no firewall drops the port"
	case errors.Is(e.Err, syscall.ENETUNREACH), errors.Is(e.Err, syscall.EHOSTUNREACH):
		return "check the route from this machine to that address"
	}
	return "check the address"
}

// errHandshake is wrapped by the errors of a server that took the connection
// but did not answer as a TCPStore.
var errHandshake = errors.New("no TCPStore handshake")

// dial makes a connection that is ready for requests.
func (c *Client) dial(ctx context.Context) (*line, error) {
	start := time.Now()
	giveUp, cancel := context.WithDeadline(ctx, start.Add(c.timeout))
	defer cancel()
	failure := &ConnectError{Addr: c.cfg.Addr}
	host, port, err := net.SplitHostPort(c.cfg.Addr)
	if err != nil {
		failure.Err = err
		return nil, failure
	}
	delay := firstDelay
	for {
		failure.Attempts++
		var l *line
		l, failure.IPs, err = attempt(giveUp, host, port)
		if err == nil {
			if err := c.adopt(l); err != nil {
				return nil, err
			}
			return l, nil
		}
		if giveUp.Err() == nil || failure.Err == nil {
			failure.Err = err // not merely that the time was up
		}
		failure.After = time.Since(start)
		if !retry(err) && giveUp.Err() == nil {
			return nil, failure
		}
		if failure.Attempts == 1 && giveUp.Err() == nil {
			c.log.Info("tcpstore: no answer yet, trying on", "addr", c.cfg.Addr, "ips", failure.IPs, "err", err, "timeout", c.timeout)
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
	var dns *net.DNSError
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, errHandshake) || errors.As(err, &dns) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// attempt resolves the host and tries its addresses in turn, IPv6 first.
func attempt(ctx context.Context, host, port string) (l *line, ips []string, err error) {
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
		var nc net.Conn
		var dialer net.Dialer
		nc, one := dialer.DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		if one == nil {
			l, one = handshake(ctx, nc)
		}
		if one == nil {
			return l, sorted, nil
		}
		// The first address that may yet work says more than the last one.
		if err == nil || retry(one) && !retry(err) {
			err = one
		}
	}
	return nil, sorted, err
}

// handshake opens the conversation: VALIDATE, which servers want in one piece and
// do not answer, and a question. torch's client sends a PING there, which servers
// before PyTorch 2.4 do not know.
func handshake(ctx context.Context, nc net.Conn) (*line, error) {
	l := newLine(nc)
	l.request = append(l.request, opening...)
	l.ask()
	if err := l.exchange(ctx, 0, acknowledged); err != nil {
		nc.Close()
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	return l, nil
}
