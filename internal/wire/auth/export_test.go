package auth

import (
	"crypto/tls"
	"io"
	"sync"
	"testing"
)

// Relay is somebody in the middle with a certificate: it ends TLS on both sides and passes on
// what is inside.
func Relay(t *testing.T, cfg Config, to string) (addr string) {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", g.tls)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := tls.Dial("tcp", to, g.tls)
			if err != nil {
				t.Error(err)
				return
			}
			all.Go(func() { io.Copy(client, server); client.(*tls.Conn).CloseWrite() })
			all.Go(func() { io.Copy(server, client); server.CloseWrite(); client.Close(); server.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}
