package hostport

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestReservedPortIsGivenToNobody(t *testing.T) {
	p, err := Reserve("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 200 {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := l.Addr().(*net.TCPAddr).Port; got == p.Port {
			t.Fatalf("port %d was given out while it was reserved", got)
		}
	}
	// Its owner can listen there: Go sets SO_REUSEADDR, as PyTorch does.
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(p.Port)))
	if err != nil {
		t.Fatalf("listen on the reserved port: %v", err)
	}
	l.Close()
}

// A process that starts while a port is reserved does not get the socket.
func TestReservedPortIsNotInherited(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip(err)
	}
	inherited := func() int {
		out, err := exec.Command("sh", "-c", "readlink /proc/self/fd/*").Output()
		if len(out) == 0 {
			t.Fatal(err)
		}
		return strings.Count(string(out), "socket:")
	}
	before := inherited() // from whoever started the test
	var reserving sync.WaitGroup
	defer reserving.Wait()
	stop := make(chan struct{})
	defer close(stop)
	reserving.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			p, err := Reserve("", 0)
			if err != nil {
				t.Error(err)
				return
			}
			p.Close()
		}
	})
	for range 200 {
		if n := inherited(); n != before {
			t.Fatalf("a process has got %d sockets, not %d", n, before)
		}
	}
}
