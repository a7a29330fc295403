package tcpstore_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// pipes is a listener without sockets.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case nc := <-p.conns:
		return nc, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

// greet begins as a client does, and reports whether the server answers.
func greet(nc net.Conn) bool {
	nc.Write(unhex("00cef7853c" + "07"))
	_, err := io.ReadFull(nc, make([]byte, 8))
	return err == nil
}

// TestMute has connections that do not begin as a client does: they are closed after
// 30 s, and the log does not have a line for each.
func TestMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		ln := newPipes()
		s, err := tcpstore.Listen(tcpstore.ServerConfig{Listener: ln, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		idle, slow, client := ln.dial(), ln.dial(), ln.dial()
		if !greet(client) {
			t.Fatal("a client is not served")
		}
		go func() { // a byte now and then is not an excuse
			for _, b := range unhex("00cef785") {
				slow.Write([]byte{b})
				time.Sleep(9 * time.Second)
			}
		}()
		start := time.Now()
		for _, nc := range []net.Conn{idle, slow} {
			if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the end of a mute connection: %v", err)
			}
		}
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("closed after %v", took)
		}
		time.Sleep(time.Hour)
		client.Write(unhex("07"))
		if _, err := io.ReadFull(client, make([]byte, 8)); err != nil {
			t.Errorf("a quiet client: %v", err)
		}
		s.Close()
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "no request came in 30s") || !strings.Contains(text, "closed=1") {
			t.Errorf("log: %s", text)
		}
		synctest.Wait()
	})
}

// open is a guard that lets everybody in, and has set a time limit meanwhile, as others do.
type open struct{}

func (open) Accept(nc net.Conn) (net.Conn, error)                     { return nc, nc.SetDeadline(time.Time{}) }
func (open) Connect(_ context.Context, nc net.Conn) (net.Conn, error) { return nc, nil }

// nothing is a guard that returns neither a connection nor an error.
type nothing struct{}

func (nothing) Accept(net.Conn) (net.Conn, error)                   { return nil, nil }
func (nothing) Connect(context.Context, net.Conn) (net.Conn, error) { return nil, nil }

// TestGuardOfNothing has a guard, at one end and at the other, forget what to return.
func TestGuardOfNothing(t *testing.T) {
	var log logBuffer
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0", Guard: nothing{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	cfg := tcpstore.ClientConfig{Addr: s.Addr().String(), Timeout: patience, Logger: quiet}
	cfg.Guard = nothing{}
	const said = "the Guard, or Follow's dial, returned neither a connection nor an error"
	if _, err := tcpstore.Dial(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("Dial: %v", err)
	}
	nc, err := net.Dial("tcp", cfg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the server sends %d bytes, %v", n, err)
	}
	s.Close()
	if text := log.String(); !strings.Contains(text, "tcpstore: connection refused: "+said) {
		t.Errorf("the server's log: %s", text)
	}
}

// TestFollowNothing has the dial of a relay forget what to return.
func TestFollowNothing(t *testing.T) {
	err := relay(t).Follow(t.Context(), func(context.Context) (net.Conn, error) { return nil, nil })
	if err == nil || !strings.Contains(err.Error(), "Follow's dial, returned neither") {
		t.Errorf("Follow: %v", err)
	}
	if err := listen(t).Follow(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "ServerConfig.Relay") {
		t.Errorf("Follow without Relay: %v", err)
	}
}

// TestMuteBehindGuard has a connection pass the guard and then say nothing.
func TestMuteBehindGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		s, err := tcpstore.Listen(tcpstore.ServerConfig{Listener: ln, Guard: open{}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		start := time.Now()
		nc := ln.dial()
		nc.SetReadDeadline(start.Add(time.Hour))
		if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(start) != 30*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestStrangersLog has many openings that are none: the log has two lines.
func TestStrangersLog(t *testing.T) {
	s, log := listenLogged(t)
	const n = 50
	w := newWires(t, s)
	for i := range n {
		w.send(i, []byte("GET / HTTP/1.1\r\n\r\n"))
		w.expectClosed(i)
	}
	s.Close()
	text := log.String()
	if strings.Count(text, "\n") != 2 || !strings.Contains(text, "closed=1\n") || !strings.Contains(text, "closed=49\n") {
		t.Errorf("log: %s", text)
	}
}

// TestLimit has two servers share a limit: whoever says nothing makes room for who does,
// and clients are not sent away for others.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		limit := &tcpstore.Limit{Max: 3}
		var lns [2]*pipes
		for i := range lns {
			lns[i] = newPipes()
			s, err := tcpstore.Listen(tcpstore.ServerConfig{Listener: lns[i], Limit: limit, Logger: slog.New(slog.NewTextHandler(log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
		}
		closed := func(nc net.Conn) bool {
			_, err := nc.Read(make([]byte, 1))
			return err != nil
		}
		client := lns[0].dial()
		if !greet(client) {
			t.Fatal("a client is not served")
		}
		time.Sleep(time.Second)
		first := lns[1].dial()
		time.Sleep(time.Second)
		second := lns[1].dial()
		time.Sleep(time.Second)
		third := lns[1].dial()
		if !closed(first) {
			t.Error("the oldest mute connection is still there")
		}
		synctest.Wait()
		if !greet(second) || !greet(third) {
			t.Error("a newer connection is closed")
		}
		if late := lns[1].dial(); !closed(late) {
			t.Error("one more than the limit")
		}
		second.Close()
		synctest.Wait()
		if late := lns[0].dial(); !greet(late) {
			t.Error("a connection that ended still counts")
		}
		if text := log.String(); !strings.Contains(text, "3 are open") {
			t.Errorf("log: %s", text)
		}
	})
}
