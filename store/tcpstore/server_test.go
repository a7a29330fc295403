package tcpstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// Serve ends the server with its context, and returns when Close does.
func TestServe(t *testing.T) {
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, end := range []func(stop func()){func(stop func()) { stop() }, func(func()) { s.Close() }} {
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error)
		go func() { served <- s.Serve(ctx) }()
		end(stop)
		if err := <-served; err != nil {
			t.Error(err)
		}
		stop()
		if err := c.Set(t.Context(), "k", nil); err == nil {
			t.Error("it is still served")
		}
	}
}

// TestRefused sends what no good client sends. Each connection is closed, the
// log says why, and the others continue.
func TestRefused(t *testing.T) {
	ok := "00cef7853c"
	key := str("/k")
	for _, tt := range []struct{ name, send, reason string }{
		{"HTTP", "474554202f20485454502f312e300d0a0d0a", "HTTP"},
		{"TLS", "160301020001", "TLS"},
		{"text", "68656c6c6f0a", "68656c6c6f0a"},
		{"wrong magic", "00deadbeef", "00deadbeef"},
		{"1.13 set", "00" + str("/key") + str("value"), "PyTorch 1.x"},
		{"1.13 add", "03" + str("init/") + "0100000000000000", "PyTorch 1.x"},
		{"1.13 get", "02" + key, "PyTorch 1.x"},
		{"1.13 number of keys", "06", "PyTorch 1.x"},
		{"second VALIDATE", ok + ok, "second VALIDATE"},
		{"unknown query", ok + "13", "unknown query 19"},
		{"long key", ok + "010120000000000000", "key of 8193 bytes"},
		{"huge key", ok + "03ffffffffffffffff", "key of 18446744073709551615 bytes"},
		{"long value", ok + "01" + key + "0100800000000000", "value of 8388609 bytes"},
		{"long second value", ok + "02" + key + str("") + "0100800000000000", "value of 8388609 bytes"},
		{"long list", ok + "060100020000000000", "list of 131073 keys"},
		{"negative list", ok + "0bffffffffffffffff", "list of 18446744073709551615 keys"},
		{"long key in a list", ok + "0501000000000000000120000000000000", "key of 8193 bytes"},
		{"long value in a list", ok + "0b0100000000000000" + key + "0100800000000000", "value of 8388609 bytes"},
		{"add to a word", ok + "01" + key + str("word") + "04" + key + "0100000000000000", `ADD to "/k": stored value is not a number`},
		{"barrier on a word", ok + "01" + key + str("word") + "12" + key + "0100000000000000", `BARRIER at "/k": stored value is not a number`},
		{"second wait", ok + "060100000000000000" + str("/a") + "060100000000000000" + str("/b"), "while another is parked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, log := listenLogged(t)
			w := newWires(t, s)
			w.opened(1)
			w.send(0, unhex(tt.send))
			w.expectClosed(0)
			w.sync(1)
			s.Close()
			text := log.String()
			if !strings.Contains(strings.ReplaceAll(text, `\"`, `"`), tt.reason) || !strings.Contains(text, "remote=127.0.0.1:") {
				t.Errorf("log does not give the reason %q: %s", tt.reason, text)
			}
		})
	}
}

// TestRepliesBeforeError has good requests in front of a bad one.
func TestRepliesBeforeError(t *testing.T) {
	w := newWires(t, listen(t))
	w.send(0, unhex("00cef7853c"+"07"+"04"+str("/n")+"0500000000000000"+"ff"))
	w.expect(0, unhex("0000000000000000"+"0500000000000000"))
	w.expectClosed(0)
}

// TestWaitOrder checks the order of answers on one connection: each belongs
// where its event happened.
func TestWaitOrder(t *testing.T) {
	w := newWires(t, listen(t))
	w.opened(0)
	w.opened(1)
	wait := "060100000000000000" + str("/k")
	count := "07"
	// A cancel, then a wait, in one write: 01 for the first, 00 for the second.
	w.send(0, unhex("0c"+wait))
	w.expect(0, unhex("01"))
	w.send(1, unhex("01"+str("/k")+str("")+"08"+str("/k")))
	w.expect(1, unhex("0100000000000000"))
	w.expect(0, unhex("00"))
	w.sync(0)
	// A wait that its own connection fulfils.
	w.send(0, unhex(wait+count+"01"+str("/k")+str("")+count+"08"+str("/k")))
	w.expect(0, unhex("0000000000000000"+"00"+"0100000000000000"+"0100000000000000"))
	// And a PING behind it.
	w.send(0, unhex(wait+"01"+str("/k")+str("")+"0d01020304"+"08"+str("/k")))
	w.expect(0, unhex("00"+"01020304"+"0100000000000000"))
	// A wait in the middle of a long request.
	half := "02" + str("/cas") + str("") + "1027000000000000"
	w.send(0, unhex(wait+count))
	w.expect(0, unhex("0000000000000000"))
	w.send(0, unhex(half))
	w.send(1, unhex("01"+str("/k")+str("")+"08"+str("/k")))
	w.expect(1, unhex("0100000000000000"))
	w.expect(0, unhex("00"))
	w.send(0, make([]byte, 10_000))
	w.expect(0, append(unhex("1027000000000000"), make([]byte, 10_000)...))
	w.sync(0)
	// Two rounds of a barrier key that others set and add to.
	w.send(0, unhex("12"+str("/b")+"0900000000000000"+count))
	w.expect(0, unhex("0200000000000000"))
	w.send(1, unhex("04"+str("/b")+"0100000000000000"))
	w.expect(1, unhex("0200000000000000"))
	w.expect(0, unhex("00"))
	w.sync(0)
}

// TestCancelRace has waits cancelled at the moment they are fulfilled: the answer
// is 00 01 or 01, and nothing else ever arrives.
func TestCancelRace(t *testing.T) { ofBoth(t, testCancelRace) }

func testCancelRace(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	const clients, rounds = 4, 500
	s := open(t)
	var all sync.WaitGroup
	crossed := make([]int, clients)
	for i := range clients {
		all.Go(func() {
			w := newWires(t, s)
			w.opened(0)
			w.opened(1)
			random := rand.New(rand.NewPCG(uint64(i), 7))
			key := str(fmt.Sprint("/race", i))
			wait := unhex("060100000000000000" + key)
			set := unhex("01" + key + str("") + "08" + key)
			for round := range rounds {
				apart := random.IntN(2) == 0
				if apart {
					w.send(0, wait)
				}
				done := make(chan struct{})
				go func() {
					w.conns[1].Write(set)
					close(done)
				}()
				if apart {
					w.send(0, []byte{12})
				} else {
					w.send(0, append(wait[:len(wait):len(wait)], 12))
				}
				var b [1]byte
				if _, err := io.ReadFull(w.conns[0], b[:]); err != nil {
					t.Error(err)
					return
				}
				if b[0] == 0 {
					crossed[i]++
					if _, err := io.ReadFull(w.conns[0], b[:]); err != nil || b[0] != 1 {
						t.Errorf("round %d: answered 00 %x, %v", round, b, err)
						return
					}
				}
				<-done
				w.expect(1, unhex("0100000000000000"))
				if round%10 == 0 {
					w.sync(0)
				}
			}
			w.sync(0)
		})
	}
	all.Wait()
	t.Logf("the wait was fulfilled first in %v of %d rounds", crossed, rounds)
}

// TestWakeMany has 200 connections wait for one key while sending other requests.
func TestWakeMany(t *testing.T) { ofBoth(t, testWakeMany) }

func testWakeMany(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	w := newWires(t, open(t))
	w.opened(0)
	const n = 200
	for round := range 5 {
		key := str(fmt.Sprint("/many", round))
		for i := 1; i <= n; i++ {
			if round == 0 {
				w.opened(i)
			}
			w.send(i, unhex("060100000000000000"+key))
			w.sync(i)
		}
		w.send(0, unhex("01"+key+str("")))
		for i := 1; i <= n; i++ {
			w.expect(i, unhex("00"))
		}
	}
}

// TestBigLists uses the most keys that a request may have.
func TestBigLists(t *testing.T) { ofBoth(t, testBigLists) }

func testBigLists(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	const n = 131072
	w := newWires(t, open(t))
	w.opened(0)
	w.opened(1)
	var keys, pairs bytes.Buffer
	binary.Write(&keys, binary.LittleEndian, int64(n))
	binary.Write(&pairs, binary.LittleEndian, int64(n))
	for i := range n {
		key := unhex(str(fmt.Sprintf("/%06d", i)))
		keys.Write(key)
		pairs.Write(key)
		pairs.Write(unhex(str("v")))
	}
	w.send(0, append([]byte{6}, keys.Bytes()...)) // WAIT
	w.send(0, []byte{7})
	w.expect(0, make([]byte, 8))
	w.send(1, append([]byte{11}, pairs.Bytes()...)) // MULTI_SET
	w.expect(0, unhex("00"))
	w.send(0, append([]byte{5}, keys.Bytes()...)) // CHECK
	w.expect(0, unhex("00"))
	w.send(0, append([]byte{10}, keys.Bytes()...)) // MULTI_GET
	w.expect(0, bytes.Repeat(unhex(str("v")), n))
	w.send(0, unhex("07"))
	w.expect(0, binary.LittleEndian.AppendUint64(nil, n))
	w.send(0, unhex("11")) // LIST_KEYS
	list := make([]byte, 8+n*(8+7))
	if _, err := io.ReadFull(w.conns[0], list); err != nil {
		t.Fatal(err)
	}
	if got := keyList(t, list); len(got) != n || got[0] != "/000000" || got[n-1] != "/131071" {
		t.Errorf("%d keys from %q to %q", len(got), got[0], got[len(got)-1])
	}
}

// heap returns the bytes in use on the heap.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestSlowReader asks for more than it reads: a terabyte in one request, replies
// without end, a wake-up while its socket is full. Memory stays bounded, nobody else
// notices, and Close does not wait for it.
func TestSlowReader(t *testing.T) {
	s := listen(t)
	w := newWires(t, s)
	w.opened(0)
	w.send(0, unhex("01"+str("/big")+str(strings.Repeat("x", 8<<20))))
	w.send(0, unhex("01"+str("/page")+str(strings.Repeat("x", 2000))))
	w.sync(0)
	before := heap()

	count := binary.LittleEndian.AppendUint64([]byte{10}, 131072)
	w.opened(1)
	w.send(1, append(count, bytes.Repeat(unhex(str("/big")), 131072)...)) // a terabyte
	w.expect(1, unhex("0000800000000000"+"7878"))
	w.opened(2)
	w.send(2, append(count, bytes.Repeat(unhex(str("/page")), 131072)...)) // of values below the size that is shared
	w.expect(2, unhex("d007000000000000"+"7878"))

	// One that waits and then asks until its socket is full.
	w.opened(3)
	w.send(3, unhex("060100000000000000"+str("/wake")+"07"))
	w.expect(3, unhex("0200000000000000"))
	stuck := w.conn(3)
	stuck.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	gets := bytes.Repeat(unhex("03"+str("/page")), 1000)
	for {
		if _, err := stuck.Write(gets); err != nil {
			break // the server has stopped reading
		}
	}
	for i := range 100 {
		w.send(0, unhex("04"+str("/n")+"0100000000000000"))
		w.expect(0, binary.LittleEndian.AppendUint64(nil, uint64(i+1)))
	}
	w.send(0, unhex("01"+str("/wake")+str("")))
	w.sync(0)
	if grown := int64(heap()) - int64(before); grown > 40<<20 {
		t.Errorf("three clients that do not read cost %d MiB", grown>>20)
	}
	closed := make(chan struct{})
	go func() {
		s.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("Close waits for clients that do not read")
	}
}

// TestWakeFull has a wait fulfilled while the waiter's socket is full of replies
// that it has not read, and its goroutine is idle: the answer comes after them.
func TestWakeFull(t *testing.T) {
	s := listen(t)
	w := newWires(t, s)
	w.opened(0)
	w.send(0, unhex("01"+str("/page")+str(strings.Repeat("x", 1<<20))))
	w.sync(0)
	wait := unhex("060100000000000000" + str("/wake"))
	get := unhex("03" + str("/page"))
	reply := append(unhex("0000100000000000"), bytes.Repeat([]byte("x"), 1<<20)...)
	w.opened(1)
	const pages = 32 // more than the sockets hold
	w.send(1, append(wait, bytes.Repeat(get, pages)...))
	w.send(0, unhex("01"+str("/wake")+str("")))
	w.sync(0)
	got := make([]byte, pages*len(reply)+1)
	if _, err := io.ReadFull(w.conns[1], got); err != nil {
		t.Fatal(err)
	}
	// The one byte may be between any two replies.
	at := 0
	for at < len(got)-1 && bytes.Equal(got[at:at+len(reply)], reply) {
		at += len(reply)
	}
	if got[at] != 0 || !bytes.Equal(got[at+1:], bytes.Repeat(reply, pages-at/len(reply))) {
		t.Errorf("the answer to the wait tore a reply at %d", at)
	}
	w.sync(1)
}

// TestStalled announces much and sends little, on many connections.
func TestStalled(t *testing.T) {
	s := listen(t)
	w := newWires(t, s)
	before := heap()
	const n = 100
	for i := range n {
		w.opened(i)
		switch i % 3 {
		case 0:
			w.send(i, unhex("01"+str("/k")+"0000800000000000"+"00"))
		case 1:
			w.send(i, unhex("0b"+"0000020000000000"+str("/k")+"0000800000000000"+"00"))
		case 2:
			w.send(i, unhex("06"+"0000020000000000"+str("/k")))
		}
	}
	w.opened(n)
	if grown := int64(heap()) - int64(before); grown > n*(3<<20)/2 {
		t.Errorf("%d stalled requests cost %d MiB", n, grown>>20)
	}
}

func TestReset(t *testing.T) {
	s := listen(t)
	w := newWires(t, s)
	ctx := t.Context()
	for round := range 20 {
		for i := range 5 {
			w.opened(i)
		}
		w.send(0, unhex("01"+str("/k")+str("")+"0e"+str("/q")+str("")))
		w.sync(0)
		w.send(1, unhex("060100000000000000"+str("/never")+"07"))
		w.expect(1, unhex("0100000000000000"))
		blocked := make(chan error, 1)
		go func() { blocked <- s.Store().Wait(ctx, "never") }()
		s.Reset()
		for i := range 5 {
			w.expectClosed(i)
		}
		if round == 0 { // later rounds may have reset before it blocked
			_ = s.Store().Set(ctx, "never", nil)
		} else {
			s.Reset()
			_ = s.Store().Set(ctx, "never", nil)
		}
		if err := <-blocked; err != nil && !errors.Is(err, store.ErrReset) {
			t.Fatalf("a call blocked when the server was reset: %v", err)
		}
		s.Reset()
		n, err := s.Store().NumKeys(ctx)
		if err != nil || n != 0 {
			t.Fatalf("%d keys after a reset, %v", n, err)
		}
		if n, err := s.Store().QueueLen(ctx, "q"); err != nil || n != 0 {
			t.Fatalf("queue of %d after a reset, %v", n, err)
		}
	}
}

func TestResetUnderLoad(t *testing.T) {
	s := listen(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				nc, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					select {
					case <-stop:
					default:
						t.Error(err)
					}
					return
				}
				nc.Write(unhex("00cef7853c" + "01" + str("/k") + str("v") + "060100000000000000" + str("/never")))
				nc.Read(make([]byte, 1))
				nc.Close()
			}
		})
	}
	for range 50 {
		s.Reset()
		runtime.Gosched()
	}
	close(stop)
	s.Reset() // ends those that wait
	s.Close()
	all.Wait()
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	s := listen(t)
	w := newWires(t, s)
	for i := range 10 {
		w.opened(i)
	}
	w.send(0, unhex("060100000000000000"+str("/never")+"07"))
	w.expect(0, make([]byte, 8))
	blocked := make(chan error, 2)
	go func() { _, err := s.Store().Get(context.Background(), "never"); blocked <- err }()
	go func() { blocked <- s.WaitForWorkers(context.Background(), 2) }()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := <-blocked; !errors.Is(err, store.ErrClosed) {
			t.Errorf("a call blocked when the server was closed: %v", err)
		}
	}
	for i := range 10 {
		w.expectClosed(i)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to a closed server: %v", err)
	}
	// This test's own goroutines may need a moment to be gone.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestListen(t *testing.T) {
	s := listen(t)
	_, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: s.Addr().String()})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), s.Addr().String()) {
		t.Errorf("listen on a port in use: %v", err)
	}
	if s.Port() == 0 {
		t.Error("port 0")
	}
	// Without a host it serves both families.
	all, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: ":0"})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for _, host := range []string{"127.0.0.1", "::1"} {
		if host == "::1" && !hasIPv6() {
			continue
		}
		c := dial(t, net.JoinHostPort(host, fmt.Sprint(all.Port())))
		if _, err := c.Add(t.Context(), "n", 1); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	// A listener of the caller's, of any kind.
	ln, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	mine, err := tcpstore.Listen(tcpstore.ServerConfig{Listener: ln})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.Write(unhex("00cef7853c" + "07"))
	if _, err := io.ReadFull(nc, make([]byte, 8)); err != nil {
		t.Error(err)
	}
	mine.Close()
	if _, err := os.Stat(ln.Addr().String()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the listener is still there: %v", err)
	}
}

func hasIPv6() bool {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	ln.Close()
	return true
}

// TestWorkers counts clients with a world size.
func TestWorkers(t *testing.T) {
	s := listen(t)
	done := make(chan error, 1)
	go func() { done <- s.WaitForWorkers(t.Context(), 3) }()
	for range 3 {
		c, err := tcpstore.Dial(t.Context(), tcpstore.ClientConfig{Addr: s.Addr().String(), WorldSize: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if keys, err := c.ListKeys(t.Context()); err != nil || len(keys) > 0 {
			t.Errorf("the count is listed: %q, %v", keys, err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := s.WaitForWorkers(ctx, 4)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "3/4") {
		t.Errorf("waiting for a fourth worker: %v", err)
	}
}

// TestView has the server's own view and a client see one another's keys.
func TestViewKeys(t *testing.T) {
	s := listen(t)
	c := dial(t, s.Addr().String())
	ctx := t.Context()
	if err := s.Store().Set(ctx, "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := c.Set(ctx, "b", []byte("y")); err != nil {
		t.Fatal(err)
	}
	value, err := c.Get(ctx, "a")
	if err != nil || string(value) != "x" {
		t.Errorf("client: %q, %v", value, err)
	}
	if value, err = s.Store().Get(ctx, "b"); err != nil || string(value) != "y" {
		t.Errorf("view: %q, %v", value, err)
	}
	met := make(chan error, 1)
	go func() { met <- c.Barrier(ctx, "meet", 2) }()
	if err := s.Store().Barrier(ctx, "meet", 2); err != nil {
		t.Error(err)
	}
	if err := <-met; err != nil {
		t.Error(err)
	}
}
