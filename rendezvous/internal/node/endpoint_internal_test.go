package node

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store/tcpstore"
)

// Further connections of a session go where the session goes, though the server has more addresses.
func TestDialerTo(t *testing.T) {
	came := make(chan string, 2)
	server := func() *tcpstore.Server {
		s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		s.HandleSession(callName, func(conn net.Conn) { came <- conn.LocalAddr().String() })
		return s
	}
	one, other := server().Addr().String(), server().Addr().String()
	conn, err := net.Dial("tcp", other)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	again, err := dialerTo(conn, tcpstore.ClientConfig{Addr: one + "," + other})(t.Context(), callName)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if got := <-came; got != other {
		t.Errorf("the session is with %s, want %s", got, other)
	}
}

// That there is no answer yet is not worth a line where the time is up.
func TestTellRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := 0
		e := fixed{n: &Node{cfg: rendezvous.Spec{OnWaiting: func(rendezvous.Waiting) { said++ }}}}
		tell := e.tellRetry()
		time.Sleep(5 * time.Second)
		if tell(&tcpstore.ConnectError{}, time.Millisecond); said != 0 {
			t.Error("said as the time is up")
		}
		if tell(&tcpstore.ConnectError{}, 5*time.Second); said != 1 {
			t.Error("not said before")
		}
	})
}
