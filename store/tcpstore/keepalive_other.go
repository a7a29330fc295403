//go:build !linux

package tcpstore

import (
	"syscall"
	"time"
)

// limitUnacknowledged does nothing: only Linux has such a limit.
func limitUnacknowledged(syscall.RawConn, time.Duration) {}
