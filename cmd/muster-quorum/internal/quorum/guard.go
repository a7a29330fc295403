package quorum

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/muster-run/muster/internal/wire/admit"
)

// A guarded listener lets nobody in from elsewhere than its list.
type guarded struct {
	net.Listener
	list    admit.List
	refused *admit.Tally
	logger  *slog.Logger
}

// Accept returns the next connection that is allowed.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		nc, err := g.Listener.Accept()
		if err != nil || g.list.Admits(nc.RemoteAddr()) {
			return nc, err
		}
		g.refused.Warn(g.logger, "quorum: connection refused: the address is not in an allowed network", "refused",
			"remote", nc.RemoteAddr().String(), "port", g.Addr().String(), "allow", fmt.Sprint(g.list))
		nc.Close()
	}
}

// open listens at an address of this host, for whom the settings allow and, inside TLS, who
// proves himself.
func (m *member) open(address string) (net.Listener, error) {
	// Etcd's own listener for members ends connections to silent hosts after 5 s.
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second,
		Interval: time.Second, Count: 5}}
	l, err := lc.Listen(context.Background(), "tcp", m.listen(address))
	if err == nil && len(m.cfg.Allow) > 0 {
		l = &guarded{l, m.cfg.Allow, &m.refused, m.logger}
	}
	if err == nil && m.tls != nil {
		l = tls.NewListener(l, m.tlsServer)
	}
	return l, err
}

// handshakeLimit is how long a connection may take to prove itself.
const handshakeLimit = 10 * time.Second

// guard puts guarded listeners in front of etcd's server, which takes URLs and no listeners:
// it listens on sockets in a directory of this user's then. close ends them.
func (m *member) guard(c *embed.Config) (close func(), err error) {
	parent := os.TempDir()
	if len(parent) > 64 {
		parent = "/tmp" // a socket's path has at most 107 bytes
	}
	dir, unlock, err := lockedTemp(parent)
	if err != nil {
		return nil, err
	}
	var listeners []net.Listener
	close = func() {
		for _, l := range listeners {
			l.Close()
		}
		_ = os.RemoveAll(dir)
		unlock()
	}
	for address, urls := range map[string][]url.URL{m.me.client: c.ListenClientUrls, m.me.peer: c.ListenPeerUrls} {
		l, err := m.open(address)
		if err != nil {
			close()
			return nil, err
		}
		listeners = append(listeners, l)
		_, port, _ := net.SplitHostPort(address)
		socket := filepath.Join(dir, port)
		urls[0] = url.URL{Scheme: "unix", Host: socket} // etcd reads no Path of a peer's
		go m.forward(l, socket)
	}
	return close, nil
}

// unproven are the connections that have not proved themselves yet, oldest first.
type unproven struct {
	most int // one more, and the oldest is closed

	mu    sync.Mutex // guards conns
	conns list.List
}

// add adds a connection; remove takes it out, where that is not done yet.
func (u *unproven) add(nc net.Conn) (remove func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conns.Len() >= max(u.most, 1) {
		u.conns.Remove(u.conns.Front()).(net.Conn).Close()
	}
	e := u.conns.PushBack(nc)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.conns.Remove(e)
	}
}

// mostUnproven is how many connections may be unproven: of the descriptors that this
// process may have, most are etcd's.
func mostUnproven() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 64
	}
	return int(min(limit.Cur/4, 1024))
}

// forward passes connections on to a socket until the listener ends.
func (m *member) forward(l net.Listener, socket string) {
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			proved := m.unproven.add(nc)
			go m.pass(nc, proved, socket)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(100 * time.Millisecond) // no descriptor is left
		}
	}
}

// pass passes on what comes on a connection, both ways, until both have ended. It calls
// proved when the connection has proved itself, or is not let in.
func (m *member) pass(nc net.Conn, proved func(), socket string) {
	defer nc.Close()
	defer proved()
	if secure, ok := nc.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(context.Background(), handshakeLimit)
		defer cancel()
		if err := secure.HandshakeContext(ctx); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return // a member or agent of the job that ends does this, too
		} else if err != nil {
			m.denied.Warn(m.logger,
				"quorum: connection refused: it has neither the job's token nor a certificate of its authority", "refused",
				"remote", nc.RemoteAddr().String(), "error", err.Error())
			return
		}
	}
	proved()
	to, err := net.Dial("unix", socket)
	if err != nil {
		return // etcd's server is not there yet, or not any more
	}
	defer to.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(to, nc)
		_ = to.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(nc, to)
	_ = nc.(interface{ CloseWrite() error }).CloseWrite()
	<-done
}
