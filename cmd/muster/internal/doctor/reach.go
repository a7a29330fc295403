package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/internal/wire/auth"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/store/tcpstore"
)

const (
	// dialLimit is how long a connection may take to be made: two lost packets.
	dialLimit = 4 * time.Second
	// dialAgain is the pause before a port that nobody listens at is tried again.
	dialAgain = 300 * time.Millisecond
	// identifyLimit is how long a server may take to say what it is.
	identifyLimit = 5 * time.Second
)

// identify finds out what has accepted a connection, and whether that is a TCPStore, by
// which hosts can meet.
func (d *doctor) identify(ctx context.Context, addr string) (what string, store bool) {
	cfg := tcpstore.ClientConfig{Addr: addr, Timeout: identifyLimit, Logger: slog.New(slog.DiscardHandler)}
	s := &d.Settings
	guard, _ := auth.New(auth.Config{Token: s.Token, TokenFile: s.TokenFile, CACert: s.TLS.CACert, Cert: s.TLS.Cert,
		Key: s.TLS.Key})
	if guard != nil { // without one, meet says what is wrong with it
		cfg.Guard = guard
	}
	conn, err := tcpstore.DialSession(ctx, cfg, "rendezvous")
	if err == nil {
		conn.Close()
		return "a muster store or agent answers", true
	}
	if errors.Is(err, tcpstore.ErrNoSession) {
		return "a TCPStore answers, PyTorch's or one without a rendezvous", true
	}
	if refused, found := errors.AsType[*auth.RefusedError](err); found {
		return refused.Error(), true
	}
	if stranger, found := errors.AsType[*tcpstore.NotStoreError](err); found {
		if what = "the server " + stranger.Saw; stranger.Guarded() || guard != nil {
			return what, stranger.Guarded()
		}
		if strings.HasPrefix(string(stranger.Answer), "HTTP/") {
			what = "a web server answers (HTTP)"
		}
		return what + ", which is not a TCPStore", false
	}
	return err.Error(), false
}

// why says in a few words why a connection could not be made. Two errors of one kind
// have the same text.
func why(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused (nothing listens there, or a firewall rejects it)"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("unreachable (%v)", cause(err))
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "forbidden by a firewall of this host"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer (packets vanish: a firewall drops them, or the host is down)"
	}
	return err.Error()
}

// endpoint is host:port, or the members of the rendezvous.
func (d *doctor) endpoint() string {
	if len(d.Members) > 0 {
		return strings.Join(d.Members, ",")
	}
	return net.JoinHostPort(d.Host, strconv.Itoa(d.Port))
}

// address is the host:port of a member, which may be a URL.
func address(member string) string {
	if u, err := url.Parse(member); err == nil && u.Host != "" {
		return u.Host
	}
	return member
}

// hosting reports whether the endpoint is on this host.
func (d *doctor) hosting(ctx context.Context) bool {
	if d.Settings.IsHost != nil {
		return *d.Settings.IsHost
	}
	return hostport.IsThisHost(ctx, d.Host)
}

// checkMeeting looks at the endpoint, and meets the other hosts there.
func (d *doctor) checkMeeting(ctx context.Context) []Line {
	switch {
	case len(d.Members) > 0:
		return d.checkMembers(ctx)
	case d.Host == "" || d.Port == 0:
		return []Line{ok("none: a job of one host")}
	}
	here := d.hosting(ctx)
	var lines []Line
	if here {
		lines = []Line{d.checkPort(ctx).as("port")}
	} else {
		lines = []Line{d.checkReach(ctx)}
	}
	if lines[0].Status == Failure || !d.many() {
		return lines
	}
	if !here {
		lines = append(lines, d.checkFamilies(ctx)...)
	}
	return append(lines, d.meet(ctx)...)
}

// checkReach connects to the endpoint, which another host has, and waits until the
// doctor there listens.
func (d *doctor) checkReach(ctx context.Context) Line {
	start := time.Now()
	until, told := start.Add(d.Wait), start
	for {
		began := time.Now()
		remote, err := d.System.reach(ctx, d.endpoint())
		if err == nil {
			took := time.Since(began)
			what, store := d.identify(ctx, d.endpoint())
			if !store {
				return failure(fmt.Sprintf("%s (%s): %s", d.endpoint(), remote, what),
					"another program has the port: end it there, or choose another port for --rdzv-endpoint on all hosts")
			}
			return ok("%s can be reached (%s, %s): %s", d.endpoint(), remote, round(took), what)
		}
		_, unresolved := errors.AsType[*net.DNSError](err)
		if !d.many() || unresolved || !time.Now().Before(until) || ctx.Err() != nil {
			return d.unreached(err, unresolved, time.Since(start))
		}
		if d.Progress != nil && time.Since(told) > 3*time.Second {
			told = time.Now()
			fmt.Fprintf(d.Progress, "muster doctor: %s: %s; trying for %v more\n",
				d.endpoint(), why(err), time.Until(until).Round(time.Second))
		}
		_ = sleep.For(ctx, dialAgain)
	}
}

// unreached says what to do about an endpoint that cannot be reached.
func (d *doctor) unreached(err error, unresolved bool, after time.Duration) Line {
	refused := errors.Is(err, syscall.ECONNREFUSED)
	text := fmt.Sprintf("%s: %s, for %s", d.endpoint(), why(err), round(after))
	switch {
	case unresolved:
		return failure(fmt.Sprintf("%s cannot be reached: its name cannot be resolved", d.endpoint()),
			"see the line about names")
	case refused && !d.many():
		return warning(fmt.Sprintf("%s: %s", d.endpoint(), why(err)), "right if the job's store is still to be started there")
	case refused:
		return failure(text, "run `muster doctor` with the same options on "+d.Host+", and look at what it says of the "+
			"port; --wait SECONDS waits longer")
	}
	return failure(text, fmt.Sprintf("let TCP from this host to port %d of %s through the firewalls in between (nft "+
		"list ruleset, the cloud's security group), and check that the host is up", d.Port, d.Host))
}

// connect dials within dialLimit.
func (s *System) connect(ctx context.Context, addr string, mss int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return s.Dial(ctx, addr, mss)
}

// reach reports whether an address accepts connections, and which one its name stands for.
func (s *System) reach(ctx context.Context, addr string) (remote string, err error) {
	conn, err := s.connect(ctx, addr, 0)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.RemoteAddr().String(), nil
}

// checkFamilies tries each address of an endpoint that has several. Clients try them
// one after the other, so that one which does not answer costs each of them minutes.
func (d *doctor) checkFamilies(ctx context.Context) []Line {
	addrs, _, err := d.resolve(ctx, d.Host)
	if err != nil || len(addrs) < 2 {
		return nil
	}
	errs := parallel.Map(len(addrs), width, func(i int) error {
		_, err := d.System.reach(ctx, netip.AddrPortFrom(addrs[i], uint16(d.Port)).String())
		return err
	})
	var dead []netip.Addr
	for i, e := range errs {
		if e != nil {
			dead, err = append(dead, addrs[i]), e
		}
	}
	if dead == nil || len(dead) == len(addrs) {
		return nil
	}
	return []Line{warning(fmt.Sprintf("%s is %s, but %s: %s", d.Host, join(addrs), join(dead), why(err)),
		"clients that try that address first wait in vain: remove it from DNS or /etc/hosts, or give the address that "+
			"works as the endpoint").as("addresses")}
}

// checkMembers tries the members of an etcd cluster or a quorum, and meets the other hosts
// by them. The members of a quorum are then the doctors'.
func (d *doctor) checkMembers(ctx context.Context) []Line {
	errs := parallel.Map(len(d.Members), width, func(i int) error {
		_, err := d.System.reach(ctx, address(d.Members[i]))
		return err
	})
	var lines []Line
	answer, bad := 0, 0
	for i, err := range errs {
		switch starting := d.Backend == "quorum" && errors.Is(err, syscall.ECONNREFUSED); {
		case err == nil:
			answer++
		case starting && d.many(): // a doctor serves it as soon as the hosts meet
		case starting:
			host, _, _ := net.SplitHostPort(address(d.Members[i]))
			lines = append(lines, warning(fmt.Sprintf("%s: %s", d.Members[i], why(err)),
				"right if the job has not been started on "+host+" yet"))
		default:
			bad++
			lines = append(lines, failure(fmt.Sprintf("%s: %s", d.Members[i], why(err)),
				"start it, or let TCP to it through the firewalls in between"))
		}
	}
	if d.Backend != "quorum" || !d.many() {
		lines = slices.Insert(lines, 0, ok("%d of %d members of the %s rendezvous can be reached",
			answer, len(d.Members), d.Backend))
	}
	if !d.many() || 2*bad >= len(d.Members) {
		return lines
	}
	return append(lines, d.meet(ctx)...)
}
