package tcpstore

import (
	"net"
	"syscall"
	"time"
)

// defaultKeepAlive is how long a connection outlives the host at its other end
// where nothing else is asked for.
const defaultKeepAlive = 15 * time.Second

// keepAlive is a KeepAlive of a ClientConfig or a ServerConfig.
type keepAlive time.Duration

// limit returns how long the other host may be silent; 0 is for ever.
func (k keepAlive) limit() time.Duration {
	switch {
	case k == 0:
		return defaultKeepAlive
	case k < 0:
		return 0
	}
	return time.Duration(k)
}

// config has the system ask the other host when a third of the limit has passed, and
// then once a second, as often as the system can, but at least twice: a network
// that loses packets now and then must not end connections.
func (k keepAlive) config() net.KeepAliveConfig {
	limit := k.limit()
	idle := limit / 3
	every := max(min(idle, time.Second), (limit-idle)/mostProbes)
	count := 2
	if every > 0 {
		count = max(count, int((limit-idle)/every))
	}
	return net.KeepAliveConfig{Enable: limit > 0, Idle: idle, Interval: every, Count: count}
}

// mostProbes is about how many probes the system can send.
// Source: MAX_TCP_KEEPCNT in linux/include/net/tcp.h.
const mostProbes = 120

// dialer makes connections that end when the other host has been silent for too
// long.
func (k keepAlive) dialer() net.Dialer {
	limit := k.limit()
	if limit == 0 {
		return net.Dialer{KeepAlive: -1}
	}
	return net.Dialer{KeepAliveConfig: k.config(), Control: func(_, _ string, c syscall.RawConn) error {
		limitUnacknowledged(c, limit)
		return nil
	}}
}

// apply has the system ask whether the host of an accepted connection is there.
func (k keepAlive) apply(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		// Without it the loss is found later.
		_ = tcp.SetKeepAliveConfig(k.config())
	}
}

// insist also ends an accepted connection whose other end takes nothing of what is
// sent. It is for sessions: a client of the store may well stop reading for
// a while, in a debugger for instance.
func (k keepAlive) insist(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok || k.limit() == 0 {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		limitUnacknowledged(raw, k.limit())
	}
}
