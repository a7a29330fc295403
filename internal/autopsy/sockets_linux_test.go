package autopsy_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-run/muster/internal/autopsy"
)

// This process looks at its own sockets.
func TestSockets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if _, err := here.Write([]byte("seven b")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()

	s := take(t, autopsy.Config{}, autopsy.Target{PID: os.Getpid()}).Workers[0].Sockets
	find := func(local, peer string) autopsy.Socket {
		for _, k := range s.Open {
			if k.Local == local && k.Peer == peer {
				return k
			}
		}
		return autopsy.Socket{}
	}
	if k := find(l.Addr().String(), ""); k.State != "LISTEN" || k.Protocol != "tcp" {
		t.Errorf("listener: %+v", k)
	}
	if k := find(there.LocalAddr().String(), there.RemoteAddr().String()); k.State != "ESTABLISHED" || k.ReceiveQueue != 7 {
		t.Errorf("connection with unread data: %+v", k)
	}
	if k := find(path, ""); k.State != "LISTEN" || k.Protocol != "unix" {
		t.Errorf("Unix socket: %+v", k)
	}
	// What has data waiting comes first.
	if len(s.Open) == 0 || s.Open[0].ReceiveQueue != 7 || s.Total < 4 || s.Files < s.Total {
		t.Errorf("sockets: %+v", s)
	}
}
