//go:build linux

package netlab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/netlab"
)

func TestHostsReachEachOther(t *testing.T) {
	lab := netlab.New(t, 3)
	for i, h := range lab.Hosts() {
		for j, o := range lab.Hosts() {
			port := invite(t, o, "echo", ":0").line()
			for _, to := range []string{o.Name, o.Addr, o.Addr6} {
				if to == "" {
					continue
				}
				got := invite(t, h, "ask", net.JoinHostPort(to, port)).line()
				ip, text, _ := strings.Cut(got, " ")
				if text != "hello" || to == o.Name && ip != o.Addr && ip != o.Addr6 || to != o.Name && ip != to {
					t.Errorf("host %d asks host %d at %s: got %q from %s", i, j, to, text, ip)
				}
			}
		}
	}
}

func TestHostKnowsItself(t *testing.T) {
	lab := netlab.New(t, 2)
	machine, _ := os.Hostname()
	for i, h := range lab.Hosts() {
		script := `cat /proc/sys/kernel/hostname && getent ahostsv4 host1 | head -1 | cut -d' ' -f1 && echo /proc/[0-9]* && ! getent ahosts example.com`
		out, err := h.Command(context.Background(), "sh", "-c", script).Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(out), "\n")
		want := []string{fmt.Sprintf("host%d", i), lab.Host(1).Addr}
		if lines[0] != want[0] || lines[1] != want[1] {
			t.Errorf("host %d: name and address of host1 are %q, want %q", i, lines[:2], want)
		}
		if n := len(strings.Fields(lines[2])); n > 4 {
			t.Errorf("host %d sees processes outside: %s", i, lines[2])
		}
	}
	if now, _ := os.Hostname(); now != machine {
		t.Errorf("the machine is called %q now, was %q", now, machine)
	}
}

// A connection over which lines go back and forth.
func connected(t *testing.T, from, to *netlab.Host) *guest {
	t.Helper()
	port := invite(t, to, "echo", ":0").line()
	g := invite(t, from, "ask", net.JoinHostPort(to.Addr, port))
	g.line()
	return g
}

func TestUnplugIsSilent(t *testing.T) {
	lab := netlab.New(t, 3)
	a, b := lab.Host(0), lab.Host(1)
	alive := connected(t, a, lab.Host(2))
	l, c := pair(t, a, b)
	b.Unplug()
	defer l.Close()
	if _, err := fmt.Fprintln(c, "lost"); err != nil {
		t.Errorf("write to an unplugged host: %v, want success", err)
	}
	quiet(t, c)
	// A new connection is not refused either.
	err := a.Do(func() error {
		_, err := net.DialTimeout("tcp", l.Addr().String(), 100*time.Millisecond)
		return err
	})
	if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
		t.Errorf("dial an unplugged host: %v, want a timeout", err)
	}
	alive.say("others go on")
	if got := alive.line(); !strings.HasSuffix(got, "others go on") {
		t.Errorf("got %q between the other hosts", got)
	}
	// Inside, the host continues: it reaches itself, and others do not answer.
	connected(t, b, b)
	for _, addr := range []string{a.Addr, a.Addr6} {
		err := b.Do(func() error {
			_, err := net.DialTimeout("tcp", net.JoinHostPort(addr, "9"), 100*time.Millisecond)
			return err
		})
		if e, ok := errors.AsType[net.Error](err); addr != "" && (!ok || !e.Timeout()) {
			t.Errorf("dial %s from an unplugged host: %v, want a timeout", addr, err)
		}
	}
	b.Plug()
	// TCP sends the line again.
	line := make([]byte, 5)
	c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(line); err != nil || string(line) != "lost\n" {
		t.Errorf("after Plug: got %q, %v; want the line sent meanwhile", line, err)
	}
}

// A lost packet must be one as on a wire, not one of the 64 KiB in which the kernel
// passes TCP from one interface to another.
func TestPacketsAreSmall(t *testing.T) {
	lab := netlab.New(t, 2)
	_, c := pair(t, lab.Host(0), lab.Host(1))
	const size = 1 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, c, size); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	out, err := lab.Host(1).Command(context.Background(), "sed", "-n", "s/.*eth0://p", "/proc/net/dev").Output()
	if err != nil {
		t.Fatal(err)
	}
	var bytes, packets int
	if _, err := fmt.Sscan(string(out), &bytes, &packets); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	if bytes < size || packets < size/1500 {
		t.Errorf("%d bytes arrived in %d packets, want packets of at most 1500", bytes, packets)
	}
}

func TestCutIsBetweenTwo(t *testing.T) {
	lab := netlab.New(t, 3)
	a, b, c := lab.Host(0), lab.Host(1), lab.Host(2)
	ab, ac, bc := connected(t, a, b), connected(t, a, c), connected(t, b, c)
	a.Cut(b)
	ab.say("one")
	for _, g := range []*guest{ac, bc} {
		g.say("two")
		if got := g.line(); got != c.Addr+" two" {
			t.Errorf("with a third host: got %q", got)
		}
	}
	for _, pair := range [][2]*netlab.Host{{a, b}, {b, a}} {
		if got := exchange(t, pair[0], pair[1], 20, 0); got != 0 {
			t.Errorf("%d packets came through from %s to %s", got, pair[0].Name, pair[1].Name)
		}
	}
	a.Heal(b)
	if got := ab.line(); got != b.Addr+" one" {
		t.Errorf("after Heal: got %q", got)
	}
}

func TestDrop(t *testing.T) {
	lab := netlab.New(t, 3)
	a, b, c := lab.Host(0), lab.Host(1), lab.Host(2)
	const n = 900
	for _, tt := range []struct {
		percent  float64
		min, max int // of n packets that arrive
	}{
		{30, 550, 710}, // six standard deviations are 82
		{0, n, n},
		{100, 0, 0},
		{5, 815, 895},
		{0, n, n},
	} {
		b.Drop(tt.percent)
		for _, pair := range [][2]*netlab.Host{{a, b}, {b, a}} {
			if got := exchange(t, pair[0], pair[1], n, tt.min); got < tt.min || got > tt.max {
				t.Errorf("drop %v%% of %s: %d of %d packets came from %s, want %d to %d",
					tt.percent, b.Name, got, n, pair[0].Name, tt.min, tt.max)
			}
		}
		if got := exchange(t, a, c, n, n); got != n {
			t.Errorf("drop %v%% of %s: %d of %d packets came through between others", tt.percent, b.Name, got, n)
		}
	}
}

// exchange sends n packets and returns how many arrived: all, or those after which
// there is silence; for the first min it is patient. There are fewer than a processor's
// queue of incoming packets holds (1,000), so that none is lost but by the switch.
func exchange(t *testing.T, from, to *netlab.Host, n, min int) int {
	t.Helper()
	in, out := udp(t, to), udp(t, from)
	dest := in.LocalAddr().(*net.UDPAddr)
	buf := make([]byte, 8)
	for range n {
		if _, err := out.WriteTo([]byte("packet"), dest); err != nil {
			t.Fatal(err)
		}
	}
	for got := range n {
		silence := 200 * time.Millisecond
		if got < min {
			silence = patience
		}
		in.SetReadDeadline(time.Now().Add(silence))
		if _, err := in.Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			return got
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func udp(t *testing.T, h *netlab.Host) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(h.Addr)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pair returns a connection of the test from one host to another, which echoes.
func pair(t *testing.T, from, to *netlab.Host) (net.Listener, net.Conn) {
	t.Helper()
	var l net.Listener
	var c net.Conn
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", to.Addr+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	err = from.Do(func() (err error) {
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			n, err := s.Read(buf)
			if err != nil {
				return
			}
			s.Write(buf[:n])
		}
	}()
	t.Cleanup(func() { s.Close(); <-done })
	return l, c
}

// quiet checks that a connection has neither data nor an end nor an error.
func quiet(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(150 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection: read %d, %v; want silence", n, err)
	}
}

func TestFirstPacketArrives(t *testing.T) {
	for range 5 {
		t.Run("lab", func(t *testing.T) {
			lab := netlab.New(t, 2)
			a, b := lab.Host(0), lab.Host(1)
			for _, what := range []string{"new", "plugged in", "booted"} {
				switch what {
				case "plugged in":
					b.Unplug()
					b.Plug()
				case "booted":
					b.PowerOff()
					b.Boot()
				}
				if exchange(t, a, b, 1, 1) != 1 || exchange(t, b, a, 1, 1) != 1 {
					t.Errorf("%s: the first packet was lost", what)
				}
			}
		})
	}
}
