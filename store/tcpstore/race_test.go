package tcpstore_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// mute listens and takes connections, and says nothing.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// deaf is an address at which nobody listens, or can until it is given up.
func deaf(t *testing.T) (addr string, giveUp func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	giveUp = sync.OnceFunc(func() { syscall.Close(fd) })
	t.Cleanup(giveUp)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	own, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", own.(*syscall.SockaddrInet4).Port), giveUp
}

// Of several addresses of a server one is enough. Those that do not answer, or do
// not exist, are not waited for.
func TestDialSeveralAddresses(t *testing.T) {
	t.Parallel()
	s := listen(t)
	nobody, _ := deaf(t)
	silent, good := mute(t), s.Addr().String()
	for _, addr := range []string{
		silent + "," + good,
		good + "," + silent,
		silent + "," + silent + "," + good,
		"no-such-host.invalid:1," + good,
		nobody + "," + good,
	} {
		// The timeout is that of a test that fails.
		c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: addr, Timeout: 30 * time.Second, Logger: quiet})
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if got := c.Remote().String(); got != good {
			t.Errorf("%s: connected to %s, want %s", addr, got, good)
		}
		if got := c.Local().(*net.TCPAddr).IP.String(); got != "127.0.0.1" {
			t.Errorf("%s: connected from %s", addr, got)
		}
		c.Close()
	}
}

// What answers and is not a store explains more than what does not answer.
func TestDialSeveralAddressesInVain(t *testing.T) {
	t.Parallel()
	nobody, _ := deaf(t)
	_, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: nobody + "," + mute(t), Timeout: time.Second, Logger: quiet})
	if e, ok := errors.AsType[*tcpstore.ConnectError](err); !ok || !strings.Contains(e.Error(), "stayed silent") {
		t.Errorf("got %v, want a ConnectError about the silent one", err)
	}
}

// A server that begins to listen is found while another address of it stays silent.
func TestDialBesideSilence(t *testing.T) {
	t.Parallel()
	silent := mute(t)
	later, giveUp := deaf(t)
	retried := make(chan struct{})
	var once sync.Once
	type end struct {
		c   *tcpstore.Client
		err error
	}
	done := make(chan end, 1)
	go func() {
		c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{
			Addr: later + "," + silent, Timeout: time.Minute, Logger: quiet,
			OnRetry: func(*tcpstore.ConnectError, time.Duration) { once.Do(func() { close(retried) }) },
		})
		done <- end{c, err}
	}()
	select {
	case <-retried:
	case e := <-done:
		t.Fatalf("it does not try again: %v", e.err)
	}
	giveUp()
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: later, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := <-done
	if e.err != nil {
		t.Fatal(e.err)
	}
	e.c.Close()
}
