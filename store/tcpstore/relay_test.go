package tcpstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
	"github.com/muster-run/muster/store/tcpstore"
)

// to returns what dials a Shared over real connections.
func to(t testing.TB, s *tcpstore.Shared) func(context.Context) (net.Conn, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go s.Serve(nc)
		}
	}()
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", ln.Addr().String())
	}
}

// relay returns a server that follows nothing yet.
func relay(t testing.TB) *tcpstore.Server {
	t.Helper()
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Relay: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// following returns a relay of a new Shared.
func following(t testing.TB) *tcpstore.Server {
	t.Helper()
	s := relay(t)
	follow(t, s, to(t, tcpstore.NewShared()))
	return s
}

func follow(t testing.TB, s *tcpstore.Server, dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	if err := s.Follow(t.Context(), dial); err != nil {
		t.Fatal(err)
	}
}

// awaitWaiting returns when n clients of a relay wait.
func awaitWaiting(t testing.TB, s *tcpstore.Server, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); s.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients wait, want %d", s.Waiting(), n)
		}
	}
}

// ofBoth runs a test with servers that have their data, and with relays.
func ofBoth(t *testing.T, test func(*testing.T, func(testing.TB) *tcpstore.Server)) {
	t.Run("memory", func(t *testing.T) { test(t, listen) })
	t.Run("relay", func(t *testing.T) { test(t, following) })
}

// TestRelay has clients at two relays.
func TestRelay(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		dialShared := to(t, tcpstore.NewShared())
		relays := [2]*tcpstore.Server{relay(t), relay(t)}
		for _, s := range relays {
			follow(t, s, dialShared)
		}
		all := make([]store.Store, n)
		for i := range all {
			all[i] = dial(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(relays[i%2].Port())))
		}
		return all
	}})
}

// opened returns raw connections to a relay that follows a Shared of the test's own, whose
// link the test holds: it speaks for the Shared.
func opened(t *testing.T) (w *wires, s *tcpstore.Server, link net.Conn) {
	t.Helper()
	s = relay(t)
	near, far := net.Pipe()
	dials := make(chan net.Conn, 1)
	dials <- near
	follow(t, s, func(ctx context.Context) (net.Conn, error) {
		select {
		case nc := <-dials:
			return nc, nil
		default:
			return nil, store.ErrClosed
		}
	})
	t.Cleanup(func() { far.Close() })
	far.SetDeadline(time.Now().Add(patience))
	w = newWires(t, s)
	w.opened(0)
	return w, s, far
}

// takes reads what a link has to carry.
func takes(t *testing.T, link net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(unhex(want)))
	if n, err := io.ReadFull(link, got); err != nil || !bytes.Equal(got, unhex(want)) {
		t.Fatalf("the link carries %x, %v, want %s", got[:n], err, want)
	}
}

// says writes what comes from a Shared.
func says(t *testing.T, link net.Conn, text string) {
	t.Helper()
	if _, err := link.Write(unhex(text)); err != nil {
		t.Fatal(err)
	}
}

const (
	waitK = "060100000000000000" // WAIT and CHECK of one key, which follows
	gone  = "01000000a8"
	none  = "ffffffffffffffff" // no length
)

// TestRelayWire shows what goes over a link.
func TestRelayWire(t *testing.T) {
	w, _, link := opened(t)
	add := "04" + str("/n") + "0500000000000000"
	w.send(0, unhex(add))
	takes(t, link, "01000000"+add)
	says(t, link, "01000000"+"00"+"08000000"+"0700000000000000")
	w.expect(0, unhex("0700000000000000"))
	wait := waitK + str("/k")
	w.send(0, unhex(wait))
	takes(t, link, "01000000"+wait)
	w.send(0, unhex("0c"))
	takes(t, link, "01000000"+"0c")
	says(t, link, "01000000"+"00"+"01000000"+"01")
	w.expect(0, unhex("01"))
	w.send(0, unhex(add))
	takes(t, link, "01000000"+add)
	says(t, link, "01000000"+"03"+"03000000"+str("why")[16:]) // the request was bad
	w.expectClosed(0)
	takes(t, link, gone)
}

// TestRelayLost has the link end while requests are under way: what may have been performed
// and has no answer that says that it failed ends the connection.
func TestRelayLost(t *testing.T) {
	for name, tt := range map[string]struct{ request, want string }{
		"add":         {"04" + str("/n") + "0500000000000000", ""},
		"delete":      {"08" + str("/n"), ""},
		"compare set": {"02" + str("/n") + str("") + str("x"), none},
		"get":         {"03" + str("/n"), none},
		"check":       {"050100000000000000" + str("/n"), "02"},
		"wait":        {waitK + str("/n"), "01"},
		"barrier":     {"12" + str("/n") + "0200000000000000", "01"},
		"queue pop":   {"0f" + str("/n"), "0100000000000000" + none},
		"set":         {"01" + str("/n") + str("x"), ""},
		"append":      {"09" + str("/n") + str("x"), ""},
		"multi set":   {"0b0100000000000000" + str("/n") + str("x"), ""},
		"queue push":  {"0e" + str("/n") + str("x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, link := opened(t)
			w.send(0, unhex(tt.request))
			takes(t, link, "01000000"+tt.request)
			link.Close()
			if tt.want == "" {
				w.expectClosed(0)
				return
			}
			w.expect(0, unhex(tt.want))
			w.sync(0)
		})
	}
}

// TestRelayKnown has the link end after one client's SET is known to have been performed, and
// before another one's is. Nothing is asked for as long as an answer is due.
func TestRelayKnown(t *testing.T) {
	w, _, link := opened(t)
	set, asked := "01"+str("/n")+str("x"), "00000000"+"07"
	w.send(0, unhex(set))
	takes(t, link, "01000000"+set+asked)
	w.opened(1)
	w.send(1, unhex(set))
	takes(t, link, "02000000"+set)
	says(t, link, "00000000"+"00"+"08000000"+"0100000000000000")
	takes(t, link, asked)
	link.Close()
	w.expectClosed(1)
	w.sync(0)
}

// TestRelayTold has a client that is told of the end of a store set a key then: in the next one.
func TestRelayTold(t *testing.T) {
	s, first := relay(t), tcpstore.NewShared()
	follow(t, s, to(t, first))
	w, k := newWires(t, s), str("/k")
	w.opened(0)
	w.send(0, unhex(waitK+k))
	awaitWaiting(t, s, 1)
	first.End()
	w.expect(0, unhex("01"))
	w.send(0, unhex("01"+k+str("v")+"10"+k)) // QUEUE_LEN waits for the next store
	follow(t, s, to(t, tcpstore.NewShared()))
	w.expect(0, unhex("0000000000000000"))
	w.send(0, unhex(waitK+k))
	w.expect(0, unhex("00"))
}

// TestRelayOver has requests come to a Shared that has ended: they are performed at the next.
func TestRelayOver(t *testing.T) {
	s := relay(t)
	first := tcpstore.NewShared()
	follow(t, s, to(t, first))
	w := newWires(t, s)
	for i := range 4 {
		w.opened(i)
	}
	k := str("/k")
	w.send(0, unhex("01"+k+str("v")+waitK+k))
	w.expect(0, unhex("00"))
	w.send(3, unhex(waitK+k))
	w.expect(3, unhex("00"))
	w.send(1, unhex(waitK+str("/never")))
	awaitWaiting(t, s, 1)
	first.End()
	w.expect(1, unhex("01"))
	w.send(1, unhex("0c")) // it has crossed
	w.sync(1)
	w.send(1, unhex("0c")) // and this one has not
	w.expect(1, unhex("01"))
	w.send(2, unhex("10"+k)) // QUEUE_LEN, which has no answer that says that it failed
	w.send(1, unhex("04"+str("/n")+"0500000000000000"))
	follow(t, s, to(t, tcpstore.NewShared()))
	w.expect(2, unhex("0000000000000000"))
	w.expect(1, unhex("0500000000000000"))
	// A WAIT at the first has found the key, so this is not a GET of a key that is not there.
	w.send(0, unhex("03"+k))
	w.expect(0, unhex(none))
	w.send(0, unhex("01"+k+str("new")+waitK+k+"03"+k))
	w.expect(0, unhex("00"+str("new")))
	// Who waits for the key twice, as gloo does, reads what the first WAIT has found.
	w.send(3, unhex(waitK+k))
	w.expect(3, unhex("01"))
	w.send(3, unhex(waitK+k+"03"+k))
	w.expect(3, unhex("00"+str("new")))
}

// TestRelayAgain has a link end and another one to the same store follow by itself.
func TestRelayAgain(t *testing.T) {
	s, shared := relay(t), tcpstore.NewShared()
	links := make(chan net.Conn, 2)
	dialShared := to(t, shared)
	follow(t, s, func(ctx context.Context) (net.Conn, error) {
		nc, err := dialShared(ctx)
		if err == nil {
			links <- nc
		}
		return nc, err
	})
	c := dial(t, s.Addr().String())
	if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	(<-links).Close()
	<-links
	var got []byte
	for ctx, err := t.Context(), error(store.ErrClosed); err != nil; {
		// The new link is there, but perhaps not in use yet, and until then each request fails.
		c, failed := tcpstore.Dial(ctx, tcpstore.ClientConfig{Addr: s.Addr().String(), Logger: quiet})
		if err = failed; err == nil {
			got, err = c.Get(ctx, "k")
			c.Close()
		}
	}
	if string(got) != "v" {
		t.Errorf("%q", got)
	}
}

// TestRelayChanges has clients of relays at work while the stores behind them are replaced:
// none is cut off, and each adds to a store of one generation.
func TestRelayChanges(t *testing.T) {
	const relays, clients, generations = 2, 8, 30
	var all [relays]*tcpstore.Server
	dialShared := to(t, tcpstore.NewShared())
	for i := range all {
		all[i] = relay(t)
		follow(t, all[i], dialShared)
	}
	stop := make(chan struct{})
	var working sync.WaitGroup
	for i := range relays * clients {
		w := newWires(t, all[i%relays])
		w.opened(0)
		working.Go(func() {
			add, wait := unhex("04"+str("/n")+"0100000000000000"), unhex(waitK+str("/never"))
			for {
				select {
				case <-stop:
					w.sync(0)
					return
				default:
				}
				w.send(0, append(add[:len(add):len(add)], wait...))
				var b [9]byte
				if _, err := io.ReadFull(w.conns[0], b[:]); err != nil || b[8] != 1 {
					t.Errorf("read %x, %v", b, err)
					return
				}
			}
		})
	}
	for range generations {
		dialShared := to(t, tcpstore.NewShared())
		for _, s := range all {
			awaitWaiting(t, s, clients)
			follow(t, s, dialShared)
		}
	}
	close(stop)
	for _, s := range all {
		follow(t, s, to(t, tcpstore.NewShared())) // for those that have begun to wait
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
			for _, s := range all {
				follow(t, s, to(t, tcpstore.NewShared()))
			}
		}
	}
}

// FuzzLink gives a Shared what is not a request of a relay's, and a relay what is no answer.
func FuzzLink(f *testing.F) {
	f.Add(unhex("01000000" + "04" + str("/n") + "0500000000000000"))
	f.Add(unhex("01000000" + waitK + str("/n") + "01000000" + "0c" + gone))
	f.Add(unhex("0100000001010000000001000000020000000001000000030100000077"))
	f.Add(unhex("ffffffffff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		shared := tcpstore.NewShared()
		served := make(chan struct{})
		go func() { defer close(served); shared.Serve(far) }()
		go io.Copy(io.Discard, near)
		near.Write(data)
		near.Close()
		<-served
		shared.End()

		s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Relay: true, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		near, far = net.Pipe()
		dials := 0
		follow(t, s, func(context.Context) (net.Conn, error) {
			if dials++; dials == 1 {
				return near, nil
			}
			return nil, store.ErrClosed
		})
		go io.Copy(io.Discard, far)
		far.Write(data)
		far.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
