//go:build linux

package timer_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/timer"
)

// serveSocket runs a timer server behind a socket until the test ends.
func serveSocket(t *testing.T, cfg timer.Config) (*timer.Server, *timer.SocketServer) {
	t.Helper()
	core, err := timer.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := timer.ListenSocket(core, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{core.Run, s.Serve} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if _, err := os.Lstat(s.Path()); err == nil {
			t.Errorf("%s is left behind", s.Path())
		}
	})
	return core, s
}

func dial(t *testing.T, c *timer.SocketClient) *timer.SocketClient {
	t.Cleanup(func() { c.Close() })
	return c
}

func hour() time.Time { return time.Unix(1<<32, 0) }

func TestSocketKillsAtTheDeadline(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	c := startChild(t, s.Path())
	c.want("ok", "acquire released 100000")
	c.want("ok", "release released")
	if got := core.Live(0); len(got) > 0 {
		t.Errorf("released, but live: %v", got)
	}
	c.want("ok", "acquire hangs 2000") // on a busy machine it may take a while to say so
	if got := c.ask("hang"); got != "" {
		t.Errorf("the child went on: %q", got)
	}
	if status := c.end().Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v, want SIGKILL", status)
	}
}

// The answer means that the timer stands.
func TestSocketRequests(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	me := os.Getpid()
	for _, tt := range []struct {
		name   string
		client *timer.SocketClient
		at     time.Time
		want   timer.Request
	}{
		{"self", &timer.SocketClient{}, hour(), timer.Request{PID: me, ScopeID: "self", ExpirationTime: hour(), Signal: 9}},
		{"by number", &timer.SocketClient{PID: me}, hour(), timer.Request{PID: me, ScopeID: "by number", ExpirationTime: hour(), Signal: 9}},
		{"TERM", &timer.SocketClient{Signal: 15}, hour(), timer.Request{PID: me, ScopeID: "TERM", ExpirationTime: hour(), Signal: 15}},
		{"report", &timer.SocketClient{Signal: -1}, hour(), timer.Request{PID: me, ScopeID: "report", ExpirationTime: hour()}},
		{"never", &timer.SocketClient{}, time.Unix(1<<50, 0), timer.Request{PID: me, ScopeID: "never", ExpirationTime: time.Unix(253402300800, 0), Signal: 9}},
		{"ünï\x00\nçödé", &timer.SocketClient{}, hour(), timer.Request{PID: me, ScopeID: "ünï\x00\nçödé", ExpirationTime: hour(), Signal: 9}},
		{strings.Repeat("x", 4096), &timer.SocketClient{}, hour(), timer.Request{PID: me, ScopeID: strings.Repeat("x", 4096), ExpirationTime: hour(), Signal: 9}},
	} {
		t.Run(tt.name[:min(len(tt.name), 20)], func(t *testing.T) {
			tt.client.Path = s.Path()
			c := dial(t, tt.client)
			if err := c.Acquire(tt.name, tt.at); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]timer.Request{tt.want}, core.Live(0)); diff != "" {
				t.Errorf("live (-want +got):\n%s", diff)
			}
			for range 2 { // the second is for an unknown timer
				if err := c.Release(tt.name); err != nil {
					t.Fatal(err)
				}
			}
			if live := core.Live(0); len(live) != 0 {
				t.Errorf("live after release: %v", live)
			}
		})
	}
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	if err := c.Acquire(strings.Repeat("x", 4097), hour()); !errors.Is(err, timer.ErrInvalid) {
		t.Errorf("a scope of 4097 bytes: %v, want ErrInvalid", err)
	}
	if err := c.Acquire("", time.Time{}); !errors.Is(err, timer.ErrInvalid) {
		t.Errorf("no time: %v, want ErrInvalid", err)
	}
}

// A client may only time itself and its descendants.
func TestSocketWhoseTimers(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	c, sibling := startChild(t, s.Path()), startChild(t, s.Path())
	var grandchild int
	if _, err := fmt.Sscanf(c.ask("spawn"), "ok %d", &grandchild); err != nil {
		t.Fatal(err)
	}
	defer c.want("ok", "leave")
	for _, tt := range []struct {
		name string
		pid  int
		ok   bool
	}{
		{"itself", c.pid(), true},
		{"its child", grandchild, true},
		{"its parent", os.Getpid(), false},
		{"its sibling", sibling.pid(), false},
		{"init", 1, false},
		{"nobody", math.MaxInt32, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := c.ask("acquire scope 1000000 %d", tt.pid)
			var want []timer.Request
			if tt.ok {
				want = []timer.Request{{PID: tt.pid, ScopeID: "scope", Signal: 9}}
				if got != "ok" {
					t.Errorf("%q, want ok", got)
				}
			} else if !strings.Contains(got, "may time itself and its descendants") {
				t.Errorf("%q, want a refusal", got)
			}
			live := core.Live(0)
			for i := range live {
				live[i].ExpirationTime = time.Time{}
			}
			if diff := cmp.Diff(want, live, cmp.Transformer("none", func(l []timer.Request) []timer.Request { return append(l, timer.Request{}) })); diff != "" {
				t.Errorf("live (-want +got):\n%s", diff)
			}
			core.Reset(nil)
		})
	}
	if got := core.Stats().Socket.Refused; got != 4 {
		t.Errorf("%d refused, want 4", got)
	}
}

func TestSocketAsksOwns(t *testing.T) {
	core, s := serveSocket(t, timer.Config{Owns: func(int) bool { return false }})
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	for range 2 {
		if err := c.Heartbeat(1); err != nil {
			t.Fatal(err)
		}
		// Requests are read in their order, so the heartbeat was when this is answered.
		if err := c.Acquire("a", hour()); !errors.Is(err, timer.ErrNotOwned) {
			t.Errorf("Acquire: %v, want ErrNotOwned", err)
		}
	}
	if got := core.Stats().Socket.Refused; got != 4 {
		t.Errorf("%d refused, want 4", got)
	}
	if h, ok := s.Heartbeat(os.Getpid()); ok {
		t.Errorf("heartbeat of a process that is not owned: %+v", h)
	}
}

func TestSocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	core, s := serveSocket(t, timer.Config{})
	c := startChild(t, s.Path())
	c.want("ok", "setuid 65534")
	c.want("error: timer socket "+s.Path()+": connect: permission denied", "acquire a 1000")

	// Even where the socket's mode lets everybody in.
	for path, mode := range map[string]os.FileMode{s.Path(): 0o777, filepath.Dir(s.Path()): 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	got := c.ask("acquire a 1000")
	if !strings.Contains(got, "it is user 65534's, and this server is user 0's") {
		t.Errorf("%q, want to be told of the user", got)
	}
	if st := core.Stats().Socket; st.Rejected != 1 || st.Conns != 0 {
		t.Errorf("%+v, want one rejected connection", st)
	}
}

// A connection belongs to the process that made it: who inherits it has none.
func TestSocketInherited(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("bare=%v", bare), func(t *testing.T) {
			cfg := timer.Config{}
			if bare {
				cfg = timer.Bare(cfg)
			}
			core, s := serveSocket(t, cfg)
			// The first child connects and hands its end over as it ends.
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			theirs := os.NewFile(uintptr(pair[1]), "theirs")
			defer unix.Close(pair[0])
			first := startChild(t, s.Path(), theirs)
			theirs.Close()
			first.want("ok", "dial")
			first.want("ok", "send %s", packet(1, 9, 0, math.Float64bits(1e11), "of the first"))
			first.want("0 ", "recv")
			first.want("ok", "give")
			rights := make([]byte, unix.CmsgSpace(4))
			if _, _, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			messages, err := unix.ParseSocketControlMessage(rights)
			if err != nil {
				t.Fatal(err)
			}
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil {
				t.Fatal(err)
			}
			conn := os.NewFile(uintptr(fds[0]), "conn")
			defer conn.Close()
			second := startChild(t, s.Path(), conn)
			first.end()

			second.want("ok", "inherited")
			second.want("ok", "send %s", packet(1, 9, 0, math.Float64bits(1e11), "of the second"))
			second.want("2 ", "recv")
			second.want("ok", "send %s", packet(1, 9, second.pid(), math.Float64bits(1e11), "of the second"))
			if got := second.ask("recv"); !strings.Contains(got, "has ended; connect anew") {
				t.Errorf("%q, want to be told to connect anew", got)
			}
			for _, r := range core.Live(0) {
				if r.ScopeID != "of the first" {
					t.Errorf("live: %v", r)
				}
			}
			second.want("ok", "acquire anew 1000000")
		})
	}
}

func TestSocketMalformed(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	good := packet(1, 9, 0, math.Float64bits(1e11), "abc")
	for _, tt := range []struct {
		name, packet, want string
	}{
		{"one byte", "01", "packet of 1 bytes"},
		{"half a frame", good[:20], "packet of 10 bytes"},
		{"cut scope", good[:len(good)-2], "scope of 2 bytes in a packet that says 3"},
		{"bytes after the scope", good + "00", "scope of 4 bytes in a packet that says 3"},
		{"another version", "02" + good[2:], "version 2: this server speaks 1"},
		{"text", hex.EncodeToString([]byte(`{"version": 1, "pid": 12}` + "\n")), "version 123: this server speaks 1"},
		{"another kind", "01ff" + good[4:], "kind 255"},
		{"byte 3", good[:6] + "01" + good[8:], "byte 3 is 1"},
		{"signal 65", packet(1, 65, 0, 0, "a"), "signal 65: want 0 to 64"},
		{"pid", packet(1, 9, 1<<31, 0, "a"), "pid 2147483648"},
		{"step", packet(3, 0, 0, math.MaxUint64-1, ""), "step -2"},
		{"long", strings.Repeat("01", 100_000), "packet of more than 4114 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := startRaw(t, s.Path())
			c.send(tt.packet)
			status, text := c.recv()
			if status != 1 || !strings.Contains(text, tt.want) {
				t.Errorf("answer %d %q, want 1 %q", status, text, tt.want)
			}
			if status, _ := c.recv(); status != -1 {
				t.Errorf("the connection is still open")
			}
		})
	}
	for _, tt := range []struct{ name, packet string }{{"nothing", ""}, {"an empty packet", "-"}, {"and closes", good}} {
		t.Run(tt.name, func(t *testing.T) {
			c := startRaw(t, s.Path())
			if tt.packet != "" {
				c.send(strings.Trim(tt.packet, "-"))
			}
			unix.Close(c.fd)
		})
	}
	// Others do not notice.
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	if err := c.Acquire("fine", hour()); err != nil {
		t.Error(err)
	}
	if got := core.Stats().Socket.Malformed; got != 12 {
		t.Errorf("%d malformed, want 12", got)
	}
	for !slices.Contains(scopes(core.Live(0)), "abc") { // of who has closed, whose packet may come late
		time.Sleep(time.Millisecond)
	}
	if err := c.Release("abc"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"fine"}, scopes(core.Live(0))); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
}

// A raw is a connection of the test's own.
type raw struct {
	t  *testing.T
	fd int
}

func startRaw(t *testing.T, path string) *raw {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, fd}
}

func (r *raw) send(packet string) {
	r.t.Helper()
	b, err := hex.DecodeString(packet)
	if err == nil {
		err = unix.Sendto(r.fd, b, unix.MSG_NOSIGNAL, nil)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// recv returns -1 at the end.
func (r *raw) recv() (status int, text string) {
	r.t.Helper()
	b := make([]byte, 1024)
	n, err := unix.Read(r.fd, b)
	if err == unix.ECONNRESET {
		n, err = unix.Read(r.fd, b)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if n == 0 {
		unix.Close(r.fd)
		return -1, ""
	}
	return int(b[1]), string(b[4:n])
}

// One that floods and reads no answers is closed, and delays nobody else.
func TestSocketFlood(t *testing.T) {
	_, s := serveSocket(t, timer.Config{})
	flooder := startChild(t, s.Path())
	flooder.want("ok", "dial")
	c := startChild(t, s.Path())
	c.want("ok", "acquire hangs 2000") // a pause must not outlast it
	if got := flooder.ask("flood 1000000 %s", packet(1, 9, 0, math.Float64bits(1e11), "x")); !strings.HasPrefix(got, "closed after") {
		t.Errorf("%q, want to be closed", got)
	}
	flooder.want("ok", "dial")
	flooder.want("ok", "flood 20000 %s", packet(3, 0, 0, 7, ""))
	if got := c.ask("hang"); got != "" {
		t.Errorf("the child went on: %q", got)
	}
	c.end()
}

func TestSocketConnections(t *testing.T) {
	core, s := serveSocket(t, timer.Conns(timer.Config{}, 2))
	first, second := startRaw(t, s.Path()), startRaw(t, s.Path())
	for _, c := range []*raw{first, second} {
		c.send(packet(2, 0, 0, 0, "a"))
		if status, text := c.recv(); status != 0 {
			t.Errorf("answer %d %q, want 0", status, text)
		}
	}
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	if err := c.Acquire("a", hour()); !errors.Is(err, timer.ErrTooMany) || !strings.Contains(err.Error(), "2 connections are open") {
		t.Errorf("Acquire of a third: %v, want ErrTooMany", err)
	}
	unix.Close(first.fd)
	for core.Stats().Socket.Conns > 1 { // until the server knows of the close
		runtime.Gosched()
	}
	if err := c.Acquire("a", hour()); err != nil {
		t.Errorf("Acquire after one was closed: %v", err)
	}
	if st := core.Stats().Socket; st.Connected != 3 || st.Rejected != 1 || st.Conns != 2 {
		t.Errorf("%+v, want 3 connected, 1 rejected, 2 open", st)
	}
	unix.Close(second.fd)
}

func TestSocketTooManyTimers(t *testing.T) {
	core, s := serveSocket(t, timer.Config{MaxTimers: 2})
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	for i, want := range []error{nil, nil, timer.ErrTooMany} {
		if err := c.Acquire(fmt.Sprint(i), hour()); !errors.Is(err, want) {
			t.Errorf("acquire %d: %v, want %v", i, err, want)
		}
	}
	if st := core.Stats().Socket; st.Connected != 1 {
		t.Errorf("%d connections, want one: a refusal does not end it", st.Connected)
	}
}

func TestSocketHeartbeats(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	me := os.Getpid()
	if _, ok := s.Heartbeat(me); ok {
		t.Error("a heartbeat before the first")
	}
	begin := time.Now()
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	steps := map[int64]int64{0: 0, 1: 1, -1: -1, math.MaxInt64: math.MaxInt64, math.MinInt64: -1}
	for step, want := range steps {
		if err := c.Heartbeat(step); err != nil {
			t.Fatal(err)
		}
		if err := c.Release("x"); err != nil { // it is answered after the heartbeat
			t.Fatal(err)
		}
		if last, ok := s.Heartbeat(me); !ok || last.PID != me || last.Step != want || last.Time.Before(begin) {
			t.Errorf("Heartbeat() = %+v, %v; want step %d", last, ok, want)
		}
	}
	if got := core.Stats().Socket.Heartbeats; got != uint64(len(steps)) {
		t.Errorf("%d heartbeats, want %d", got, len(steps))
	}
}

// Owns is asked about a process once in an attempt.
func TestSocketHeartbeatsAreVouchedFor(t *testing.T) {
	var mu sync.Mutex
	asked := map[int]int{}
	owns := func(yes bool) func(int) bool {
		return func(pid int) bool {
			mu.Lock()
			defer mu.Unlock()
			asked[pid]++
			return yes
		}
	}
	core, s := serveSocket(t, timer.Config{Owns: owns(true)})
	c := startChild(t, s.Path())
	var grandchild int
	if _, err := fmt.Sscanf(c.ask("spawn"), "ok %d", &grandchild); err != nil {
		t.Fatal(err)
	}
	defer c.want("ok", "leave")
	c.want("ok", "dial")
	beat := func(pid int) {
		t.Helper()
		for step := range 2 {
			c.want("ok", "send %s", packet(3, 0, pid, uint64(step), ""))
		}
		c.want("ok", "send %s", packet(2, 0, 0, 0, "answered after them"))
		c.want("0 ", "recv")
	}
	for _, pid := range []int{0, c.pid(), grandchild, os.Getpid()} {
		beat(pid)
	}
	mu.Lock()
	if diff := cmp.Diff(map[int]int{c.pid(): 1, grandchild: 1}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	mu.Unlock()
	for pid, want := range map[int]bool{c.pid(): true, grandchild: true, os.Getpid(): false} {
		if _, ok := s.Heartbeat(pid); ok != want {
			t.Errorf("heartbeat of %d: %v, want %v", pid, ok, want)
		}
	}

	before := core.Stats().Socket
	core.Reset(owns(false))
	beat(0)
	if got := core.Stats().Socket; got.Heartbeats != before.Heartbeats || got.Refused != before.Refused+2 {
		t.Errorf("in the next attempt: %+v after %+v, want two more refused", got, before)
	}
}

// The last heartbeats are kept, of a bounded number of processes.
func TestSocketKeepsTheLastHeartbeats(t *testing.T) {
	_, s := serveSocket(t, timer.Config{})
	for pid := 1; pid <= 4096; pid++ {
		timer.Beat(s, pid, 0)
	}
	timer.Beat(s, 1, 1) // now 2 is the oldest
	timer.Beat(s, 5000, 1)
	for pid, want := range map[int]bool{1: true, 2: false, 3: true, 4096: true, 5000: true} {
		if _, ok := s.Heartbeat(pid); ok != want {
			t.Errorf("heartbeat of %d: %v, want %v", pid, ok, want)
		}
	}
}

// A server that is stopped (SIGSTOP) does not hold its clients up for ever, and
// starts no timer later whose owner has given up.
func TestSocketSilentServer(t *testing.T) {
	core, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := timer.ListenSocket(core, "")
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, &timer.SocketClient{Path: s.Path(), Timeout: 10 * time.Millisecond})
	if err := c.Acquire("a", hour()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Acquire: %v, want os.ErrDeadlineExceeded", err)
	}
	var sent int // until the socket is full
	for c.Heartbeat(1) == nil {
		sent++
	}
	c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go core.Run(ctx)
	go func() { done <- s.Serve(ctx) }()
	again := dial(t, &timer.SocketClient{Path: s.Path()})
	for st := core.Stats().Socket; st.Connected < 3 || st.Conns > 1; st = core.Stats().Socket { // until all of the first one is read
		if err := again.Acquire("b", hour()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"b"}, scopes(core.Live(0))); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
	if got := core.Stats().Socket.Heartbeats; got != uint64(sent) {
		t.Errorf("%d heartbeats, want the %d that were sent", got, sent)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A new server at the same path has the same clients.
func TestSocketRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c := dial(t, &timer.SocketClient{Path: path})
	for round := range 3 {
		core, err := timer.NewServer(timer.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := timer.ListenSocket(core, path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go core.Run(ctx)
		go func() { done <- s.Serve(ctx) }()
		scope := fmt.Sprint(round)
		if err := c.Acquire(scope, hour()); err != nil {
			t.Errorf("Acquire: %v", err)
		}
		if diff := cmp.Diff([]string{scope}, scopes(core.Live(0))); diff != "" {
			t.Errorf("live (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.Close()
		if err := s.Serve(t.Context()); err == nil {
			t.Error("Serve twice: no error")
		}
		if err := c.Acquire(scope, hour()); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("Acquire without a server: %v, want ENOENT", err)
		}
		if err := c.Release(scope); err != nil {
			t.Errorf("Release without a server: %v", err)
		}
		if err := c.Heartbeat(0); err == nil {
			t.Error("Heartbeat without a server: no error")
		}
	}
	c.Close()
	if err := c.Acquire("a", hour()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Acquire after Close: %v, want os.ErrClosed", err)
	}
}

func TestSocketConcurrently(t *testing.T) {
	core, s := serveSocket(t, timer.Config{})
	c := dial(t, &timer.SocketClient{Path: s.Path()})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 100 {
				scope := fmt.Sprintf("%d/%d", g, i)
				if err := c.Acquire(scope, hour()); err != nil {
					t.Error(err)
				}
				_ = c.Heartbeat(int64(i))
				if i%10 > 0 {
					if err := c.Release(scope); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := len(core.Live(0)); got != 160 {
		t.Errorf("%d live, want 160", got)
	}
}

func TestListenSocketPaths(t *testing.T) {
	core, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	go core.Run(t.Context())
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 100), strings.Repeat("e", 100))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	stale := func(t *testing.T, path string) {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	live := func(network string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}
	}
	plain := func(t *testing.T, path string) {
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, path string
		before     func(t *testing.T, path string)
		want       string // error
	}{
		{"free", filepath.Join(t.TempDir(), "s"), nil, ""},
		{"long", filepath.Join(long, "s"), nil, ""},
		{"long name", filepath.Join(long, strings.Repeat("n", 61)), nil, "want at most 60"},
		{"stale", filepath.Join(t.TempDir(), "s"), stale, ""},
		{"in use", filepath.Join(t.TempDir(), "s"), live("unixpacket"), "is in use by another program"},
		{"in use by streams", filepath.Join(t.TempDir(), "s"), live("unix"), "is in use by another program"},
		{"plain file", filepath.Join(t.TempDir(), "s"), plain, "is not a socket (-rw-------) and is left alone"},
		{"directory", t.TempDir(), nil, "is not a socket (drwx"},
		{"no directory", filepath.Join(t.TempDir(), "no", "s"), nil, "no such file or directory"},
		{"long, no directory", filepath.Join(long, "no", "s"), nil, "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.before != nil {
				tt.before(t, tt.path)
			}
			s, err := timer.ListenSocket(core, tt.path)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
				if _, err := os.Lstat(tt.path); tt.before != nil && err != nil {
					t.Errorf("what was there is gone: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(tt.path); err != nil || info.Mode() != os.ModeSocket|0o600 {
				t.Errorf("%v, %v: want a socket for this user only", info.Mode(), err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Serve(ctx) }()
			if err := dial(t, &timer.SocketClient{Path: tt.path}).Acquire("a", hour()); err != nil {
				t.Error(err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(tt.path); err == nil {
				t.Error("the socket is left behind")
			}
		})
	}
}

// What another program put at the path stays.
func TestSocketLeavesOthersAlone(t *testing.T) {
	core, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	s, err := timer.ListenSocket(core, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestSocketClientFields(t *testing.T) {
	_, s := serveSocket(t, timer.Config{})
	for _, tt := range []struct {
		client *timer.SocketClient
		want   error
	}{
		{&timer.SocketClient{}, timer.ErrInvalid},
		{&timer.SocketClient{Path: s.Path(), PID: -1}, timer.ErrInvalid},
		{&timer.SocketClient{Path: s.Path(), Signal: 65}, timer.ErrInvalid},
		{&timer.SocketClient{Path: s.Path(), Timeout: 1}, nil}, // it is a millisecond
	} {
		if err := dial(t, tt.client).Acquire("a", hour()); !errors.Is(err, tt.want) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: %v, want %v", tt.client, err, tt.want)
		}
	}
}

// Whatever one client sends, the others are served.
func FuzzSocketServer(f *testing.F) {
	core, err := timer.NewServer(timer.Config{Reap: func(context.Context, *timer.Expiry) error { return nil }})
	if err != nil {
		f.Fatal(err)
	}
	s, err := timer.ListenSocket(core, "")
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go core.Run(ctx)
	go func() { done <- s.Serve(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	good, err := hex.DecodeString(packet(1, 9, 0, math.Float64bits(1e11), "abc"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, 1)
	f.Add(good, 1)
	f.Add(good, 7)
	f.Add([]byte(strings.Repeat(string(good), 40)), len(good))
	f.Add(make([]byte, 5000), 5000)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		size = max(1, min(size, len(data), 8000))
		c := startRaw(t, s.Path())
		defer unix.Close(c.fd)
		for packet := range slices.Chunk(data, size) {
			if unix.Sendto(c.fd, packet, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil) != nil {
				break // closed, or it answers slower than this sends
			}
		}
		other := &timer.SocketClient{Path: s.Path()}
		defer other.Close()
		if err := errors.Join(other.Acquire("other", hour()), other.Release("other")); err != nil {
			t.Error(err)
		}
		core.Reset(nil)
	})
}

// Without descriptors the server waits for some, and does not spin.
func TestSocketWithoutDescriptors(t *testing.T) {
	log := newJournal()
	_, s := serveSocket(t, timer.Config{Logger: log.logger()})
	c := startChild(t, s.Path())
	c.want("ok", "spawn") // it has looked up what it needs
	c.want("ok", "leave")

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(lowest)
	none := limit
	none.Cur = uint64(lowest)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	c.want("ok", "dial")
	c.want("ok", "send %s", packet(2, 0, 0, 0, "a"))
	log.await(t, "timer socket: cannot accept a connection; trying again")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	c.want("0 ", "recv")
	if n := strings.Count(log.String(), "cannot accept a connection"); n != 1 {
		t.Errorf("it was logged %d times, want once", n)
	}
}

func scopes(requests []timer.Request) []string {
	var s []string
	for _, r := range requests {
		s = append(s, r.ScopeID)
	}
	return s
}
