package tcpstore_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/muster-run/muster/store/tcpstore"
)

// echo answers each line by the same.
func echo(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		conn.Write(line)
	}
}

func session(t testing.TB, addr, name string) net.Conn {
	t.Helper()
	conn, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: addr, Logger: quiet}, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// exchange says something and reads as much.
func exchange(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("said %q, got %q, %v", text, got, err)
	}
}

func TestSession(t *testing.T) {
	s := listen(t)
	addr := s.Addr().String()
	cfg := tcpstore.ClientConfig{Addr: addr, Logger: quiet}
	if _, err := tcpstore.DialSession(t.Context(), cfg, "echo"); !errors.Is(err, tcpstore.ErrNoSession) {
		t.Errorf("a server without sessions: %v", err)
	}
	s.HandleSession("echo", echo)
	if _, err := tcpstore.DialSession(t.Context(), cfg, "other"); !errors.Is(err, tcpstore.ErrNoSession) {
		t.Errorf("a session of another name: %v", err)
	}
	one, two := session(t, addr, "echo"), session(t, addr, "echo")
	inside, err := s.ServeSession("echo")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	for _, conn := range []net.Conn{one, two, inside} {
		exchange(t, conn, "hello\n")
	}
	one.Close()
	s.Reset()
	exchange(t, two, "still there\n")
	exchange(t, inside, "still there\n")
	s.Close()
	for _, conn := range []net.Conn{two, inside} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("Close left a session")
		}
	}
}
