package node

import (
	"net"
	"strconv"
	"testing"
)

func TestReservedPortIsGivenToNobody(t *testing.T) {
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for range 200 {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Addr().(*net.TCPAddr).Port; got == p.port {
			t.Fatalf("port %d was given out while it was reserved", got)
		}
	}
	// Its owner can listen there: Go sets SO_REUSEADDR, as PyTorch does.
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(p.port)))
	if err != nil {
		t.Fatalf("listen on the reserved port: %v", err)
	}
	l.Close()
}
