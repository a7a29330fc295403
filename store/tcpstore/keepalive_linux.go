package tcpstore

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged bounds how long the other host may leave what was sent
// unacknowledged. Keep-alive probing does not see that: the system probes only when
// nothing is under way, and otherwise sends again for a quarter of an hour.
func limitUnacknowledged(c syscall.RawConn, limit time.Duration) {
	_ = c.Control(func(fd uintptr) {
		// Without it the loss is found later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
