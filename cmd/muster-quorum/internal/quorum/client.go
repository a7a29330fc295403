package quorum

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wire/pipe"
)

// clientConfig turns the settings into those of etcd's client.
func clientConfig(cfg *pipe.Elect) (clientv3.Config, error) {
	secure, err := tlsConfig(cfg)
	c := clientv3.Config{
		DialTimeout:          cfg.Call.Or(time.Duration(cfg.TTL) / 4),
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		BackoffWaitBetween:   10 * time.Millisecond,
		TLS:                  secure,
		Username:             cfg.User,
		Password:             cfg.Password,
		Logger:               zap.NewNop(), // each error of a request comes back to us
		DialOptions:          []grpc.DialOption{reconnect()},
	}
	errs := []error{err}
	for _, e := range cfg.Endpoints {
		u, err := endpointURL(e, secure != nil)
		c.Endpoints = append(c.Endpoints, u)
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// reconnect makes the client try a member that was lost every second; by itself it
// would wait up to two minutes.
func reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
			MaxDelay: time.Second},
		MinConnectTimeout: 2 * time.Second,
	})
}

// endpointURL completes an endpoint: etcd's own port is 2379.
func endpointURL(endpoint string, secure bool) (string, error) {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	rest := endpoint
	if before, after, ok := strings.Cut(endpoint, "://"); ok {
		rest = strings.TrimSuffix(after, "/")
		switch {
		case before != "http" && before != "https":
			return "", fmt.Errorf("endpoint %q: want http:// or https://", endpoint)
		case before == "http" && secure:
			return "", fmt.Errorf("endpoint %q is http, and certificates are given: want https", endpoint)
		}
		scheme = before
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "2379"
	}
	if n, err := strconv.Atoi(port); host == "" || strings.ContainsAny(host, "/ @") || err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("endpoint %q: want host:port or a URL", endpoint)
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// tlsConfig returns nil unless certificates or an https endpoint are given.
func tlsConfig(cfg *pipe.Elect) (*tls.Config, error) {
	if cfg.Token != "" && cfg.CACert == "" {
		id, err := identify(cfg.Token, nil)
		if err != nil {
			return nil, err
		}
		return id.config()
	}
	https := slices.ContainsFunc(cfg.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") })
	if cfg.CACert == "" && cfg.Cert == "" && !https {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	var errs []error
	if cfg.CACert != "" {
		pem, err := os.ReadFile(cfg.CACert)
		c.RootCAs = x509.NewCertPool()
		if err == nil && !c.RootCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s has no certificate in PEM", cfg.CACert)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cacert: %w", err))
		}
	}
	if cfg.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("cert and key: %w", err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, errors.Join(errs...)
}

// probe finds out why requests fail: it asks each endpoint by itself, and says
// what is wrong; "" if a member answers that has a leader. Those that do are the ones to use, or else all.
func probe(ctx context.Context, cfg *pipe.Elect, client clientv3.Config) (text string, use []string) {
	ctx, cancel := context.WithTimeout(ctx, max(client.DialTimeout, time.Second))
	defer cancel()
	client.Username, client.Password = "", "" // a member's state needs none
	n := len(client.Endpoints)
	var down, leaderless []string
	for i, fault := range parallel.Map(n, n, func(i int) string { return ask(ctx, client, client.Endpoints[i]) }) {
		switch fault {
		case "":
			use = append(use, client.Endpoints[i])
		case noLeader:
			leaderless = append(leaderless, cfg.Endpoints[i])
		default:
			down = append(down, cfg.Endpoints[i]+": "+fault)
		}
	}
	if len(use) > 0 {
		return "", use
	}
	return outage(down, leaderless), client.Endpoints
}

// noLeader is the fault of a member that answers, without a majority.
const noLeader = "no leader"

// outage says what is wrong with a cluster that does not serve.
func outage(down, leaderless []string) string {
	if len(leaderless) == 0 {
		return "no member of etcd answers: " + strings.Join(down, "; ")
	}
	text := fmt.Sprintf("etcd has no leader, as %d of %d members answer and a majority is needed; up: %s",
		len(leaderless), len(leaderless)+len(down), strings.Join(leaderless, ", "))
	if len(down) == 0 {
		return text
	}
	return text + "; down: " + strings.Join(down, "; ")
}

// ask returns what is wrong with a member.
func ask(ctx context.Context, client clientv3.Config, endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err.Error()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return dialFault(err)
	}
	defer conn.Close()
	if client.TLS != nil {
		secure := client.TLS.Clone()
		secure.ServerName = u.Hostname()
		if err := tls.Client(conn, secure).HandshakeContext(ctx); err != nil {
			return dialFault(err)
		}
	}
	return askStatus(ctx, client, endpoint)
}

// askStatus asks a member that can be connected to.
func askStatus(ctx context.Context, client clientv3.Config, endpoint string) string {
	client.Endpoints = []string{endpoint}
	cli, err := clientv3.New(client)
	if err != nil {
		return plain(err)
	}
	defer cli.Close()
	status, err := cli.Status(ctx, endpoint)
	switch {
	case err != nil && ctx.Err() != nil:
		if client.TLS == nil && speaksTLS(ctx, strings.TrimPrefix(endpoint, "http://")) {
			return "it speaks TLS: name the certificate of its authority (cacert), and cert and key if it wants the client's; for quorum the job's token_file will do"
		}
		return "connected, but no answer"
	case err != nil:
		return plain(err)
	case status.Leader == 0:
		return noLeader
	}
	return ""
}

// speaksTLS tries. It gets a little more time than ctx had.
func speaksTLS(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // nothing is sent
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// otherToken begins the fault of a member with other secrets.
const otherToken = "it has another token or authority than this agent"

// dialFault is the error of a dial without the address, which the reader has.
func dialFault(err error) string {
	if plaintext, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "it has no token or certificate, and this agent has (" + plaintext.Error() + ")"
	}
	if other, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return otherToken + " (" + plain(other) + ")"
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "no answer (timeout)"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}
