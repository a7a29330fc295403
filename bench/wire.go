//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// A client speaks as much of the TCPStore protocol as the load needs, with no
// more between it and the socket than must be. It is the same for every
// server, so that the server is all that differs; of the echo server it
// expects its own bytes back.
type client struct {
	net.Conn
	echo bool
	in   []byte
}

func dial(addr string, echo bool) (*client, error) { return dialFrom("", addr, echo) }

// dialFrom dials from a local address of its own; "" leaves it to the kernel.
func dialFrom(local, addr string, echo bool) (*client, error) {
	d := net.Dialer{Timeout: patience}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	// A server that does not answer fails the run, with a line that says where.
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := &client{Conn: conn, echo: echo, in: make([]byte, 64<<10)}
	if echo {
		return c, c.exchange(make([]byte, 10), 10)
	}
	hello := []byte{0, 0xce, 0xf7, 0x85, 0x3c, 13}
	hello = binary.LittleEndian.AppendUint32(hello, uint32(os.Getpid()))
	if err := c.exchange(hello, 4); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if got := binary.LittleEndian.Uint32(c.in); got != uint32(os.Getpid()) {
		conn.Close()
		return nil, fmt.Errorf("handshake: pong %d, want %d", got, os.Getpid())
	}
	return c, nil
}

// exchange sends a request and reads a reply of n bytes into c.in.
func (c *client) exchange(request []byte, n int) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	if c.echo {
		n = len(request)
	}
	_, err := io.ReadFull(c.Conn, c.in[:n])
	return err
}

func appendBytes(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// requests of the protocol, whose replies have a fixed length.

func setRequest(b []byte, key, value string) []byte {
	return appendBytes(appendBytes(append(b, 1), key), value)
}

func addRequest(b []byte, key string, delta int64) []byte { // reply 8 bytes
	return binary.LittleEndian.AppendUint64(appendBytes(append(b, 4), key), uint64(delta))
}

func waitRequest(b []byte, key string) []byte { // reply 1 byte
	return appendBytes(binary.LittleEndian.AppendUint64(append(b, 6), 1), key)
}

func numKeysRequest(b []byte) []byte { // reply 8 bytes
	return append(b, 7)
}

func (c *client) number() int64 { return int64(binary.LittleEndian.Uint64(c.in)) }
