package tcpstore_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/store/tcpstore"
)

// probing is what a socket does about a silent host, in seconds and milliseconds.
type probing struct{ On, Idle, Interval, Count, UserTimeout int }

func probingOf(t *testing.T, nc net.Conn) (p probing) {
	t.Helper()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		for _, o := range []struct {
			to          *int
			level, name int
		}{
			{&p.On, unix.SOL_SOCKET, unix.SO_KEEPALIVE},
			{&p.Idle, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
			{&p.Interval, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
			{&p.Count, unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
			{&p.UserTimeout, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		} {
			if *o.to, err = unix.GetsockoptInt(int(fd), o.level, o.name); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func TestKeepAliveOptions(t *testing.T) {
	for _, tt := range []struct {
		limit time.Duration
		want  probing
	}{
		{0, probing{1, 5, 1, 10, 15000}},
		{3 * time.Second, probing{1, 1, 1, 2, 3000}},
		{10 * time.Second, probing{1, 4, 1, 6, 10000}},
		{time.Minute, probing{1, 20, 1, 40, 60000}},
		{10 * time.Minute, probing{1, 200, 4, 120, 600000}},
	} {
		accepted := make(chan probing, 1)
		s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: quiet, KeepAlive: tt.limit, Prepare: func(s *tcpstore.Server) {
			s.HandleSession("s", func(conn net.Conn) { accepted <- probingOf(t, conn); io.Copy(io.Discard, conn) })
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		conn, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), KeepAlive: tt.limit, Logger: quiet}, "s")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if diff := cmp.Diff(tt.want, probingOf(t, conn)); diff != "" {
			t.Errorf("%v, client (-want +got):\n%s", tt.limit, diff)
		}
		if diff := cmp.Diff(tt.want, <-accepted); diff != "" {
			t.Errorf("%v, server (-want +got):\n%s", tt.limit, diff)
		}
	}
}

func TestKeepAliveOff(t *testing.T) {
	accepted := make(chan probing, 1)
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Logger: quiet, KeepAlive: -1, Prepare: func(s *tcpstore.Server) {
		s.HandleSession("s", func(conn net.Conn) { accepted <- probingOf(t, conn) })
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := tcpstore.DialSession(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), KeepAlive: -1, Logger: quiet}, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, p := range []probing{probingOf(t, conn), <-accepted} {
		if p.On != 0 || p.UserTimeout != 0 {
			t.Errorf("probing is %+v", p)
		}
	}
}

// inNamespace does the work on a thread in a network of its own, and returns the
// thread's ID. Sockets that the work makes stay in that network.
func inNamespace(t *testing.T, work <-chan func()) (thread int) {
	t.Helper()
	ready := make(chan error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		thread = unix.Gettid()
		err := unix.Unshare(unix.CLONE_NEWNET)
		ready <- err
		if err != nil {
			return
		}
		for f := range work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Skipf("makes networks of its own, which this user may not: %v", err)
	}
	t.Cleanup(func() { <-done })
	return thread
}

// TestUnplugged cuts the network between two hosts, on either side: a blocked call
// and both ends of a session, one of them in the middle of sending, end within
// the limit.
func TestUnplugged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes networks of its own, which needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("makes networks of its own, which needs the program ip")
	}
	for _, side := range []string{"left", "right"} {
		t.Run(side, func(t *testing.T) { t.Parallel(); unplug(t, side) })
	}
}

// unplug has a server on the left, a client on the right, and the link taken down
// on one side.
func unplug(t *testing.T, side string) {
	const limit = 3 * time.Second
	works := map[string]chan func(){"left": make(chan func()), "right": make(chan func())}
	threads := map[string]int{}
	for name, work := range works {
		threads[name] = inNamespace(t, work)
		t.Cleanup(func() { close(work) })
	}
	in := func(name string, f func()) {
		done := make(chan struct{})
		works[name] <- func() { defer close(done); f() }
		<-done
	}
	run := func(name string, args ...string) {
		t.Helper()
		in(name, func() {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Errorf("ip %v: %v: %s", args, err, out)
			}
		})
	}
	run("right", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", fmt.Sprint(threads["left"]))
	for name, addr := range map[string]string{"left": "10.77.0.1/24", "right": "10.77.0.2/24"} {
		run(name, "addr", "add", addr, "dev", "veth0")
		run(name, "link", "set", "veth0", "up")
	}
	if t.Failed() {
		t.FailNow()
	}

	var s *tcpstore.Server
	var err error
	in("left", func() {
		s, err = tcpstore.Listen(tcpstore.ServerConfig{Addr: "10.77.0.1:0", Logger: quiet, KeepAlive: limit})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := make(chan net.Conn, 1)
	ended := make(chan error, 3)
	s.HandleSession("s", func(conn net.Conn) {
		began <- conn
		_, err := io.Copy(io.Discard, conn)
		ended <- fmt.Errorf("server's session: %w", err)
	})
	cfg := tcpstore.ClientConfig{Addr: s.Addr().String(), Logger: quiet, KeepAlive: limit, Timeout: time.Minute}
	var conn net.Conn
	var c *tcpstore.Client
	in("right", func() {
		if c, err = tcpstore.Dial(t.Context(), cfg); err == nil {
			conn, err = tcpstore.DialSession(t.Context(), cfg, "s")
		}
		if err == nil { // makes the connection that the next one uses
			err = c.Barrier(t.Context(), "first", 1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer conn.Close()
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- fmt.Errorf("client's session: %w", err)
	}()
	go func() { ended <- c.Barrier(t.Context(), "b", 2) }()
	if err := s.Store().Wait(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	serverEnd := <-began

	run(side, "link", "set", "veth0", "down")
	cut := time.Now()
	io.WriteString(serverEnd, "into the void") // no probes from now on, but the same again
	for range 3 {
		err := <-ended
		took := time.Since(cut)
		t.Logf("after %v: %v", took.Round(time.Millisecond), err)
		if !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("it ended with: %v", err)
		}
		if took > limit+20*time.Second { // the kernel gives up after minutes, or hours
			t.Errorf("noticed after %v, the limit is %v", took, limit)
		}
	}
}
