//go:build !linux

package timer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errNoSocket: who connects is told by SO_PEERCRED, in packets of SOCK_SEQPACKET.
var errNoSocket = fmt.Errorf("timer socket: needs Linux; use the FIFO: %w", errors.ErrUnsupported)

// A SocketServer needs Linux.
type SocketServer struct {
	*Server
	call life
}

// ListenSocket returns an error that wraps errors.ErrUnsupported.
func ListenSocket(*Server, string) (*SocketServer, error) { return nil, errNoSocket }

// StartSocket returns an error that wraps errors.ErrUnsupported.
func StartSocket(Config, string) (*SocketServer, error) { return nil, errNoSocket }

func (*SocketServer) serve(context.Context) error { return errNoSocket }

// Path is empty.
func (*SocketServer) Path() string { return "" }

// Serve returns an error that wraps errors.ErrUnsupported.
func (*SocketServer) Serve(context.Context) error { return errNoSocket }

// Close does nothing.
func (*SocketServer) Close() error { return nil }

// Heartbeat finds none.
func (*SocketServer) Heartbeat(int) (Heartbeat, bool) { return Heartbeat{}, false }

type conns struct{}

// Acquire returns an error that wraps errors.ErrUnsupported.
func (*SocketClient) Acquire(string, time.Time) error { return errNoSocket }

// Release returns an error that wraps errors.ErrUnsupported.
func (*SocketClient) Release(string) error { return errNoSocket }

// Heartbeat returns an error that wraps errors.ErrUnsupported.
func (*SocketClient) Heartbeat(int64) error { return errNoSocket }

// Close does nothing.
func (*SocketClient) Close() error { return nil }
