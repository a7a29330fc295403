package timer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// soon fails the test if what it waits for does not come.
func soon(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(testproc.Patience / 4):
		t.Errorf("%s goes on after Close", what)
	}
}

// Close ends what Run and Serve do.
func TestCloseEnds(t *testing.T) {
	server, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	fifo, err := timer.ListenFIFO(server, filepath.Join(t.TempDir(), "fifo"))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := timer.ListenSocket(server, "")
	if err != nil {
		t.Fatal(err)
	}
	ran, read, answered := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { ran <- server.Run(context.Background()) }()
	go func() { read <- fifo.Serve(context.Background()) }()
	go func() { answered <- socket.Serve(context.Background()) }()
	file, stream := &timer.FileClient{Path: fifo.Path()}, &timer.SocketClient{Path: socket.Path()}
	defer stream.Close()
	if err := errors.Join(file.Release("a"), stream.Release("a")); err != nil { // all of them run
		t.Fatal(err)
	}
	fifo.Close()
	soon(t, "FileServer.Serve", read)
	socket.Close()
	soon(t, "SocketServer.Serve", answered)
	server.Close()
	soon(t, "Server.Run", ran)
}

// A server that nobody runs takes no timer of another process, and its progress stands still.
func TestServerNobodyRuns(t *testing.T) {
	server, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	fifo, err := timer.ListenFIFO(server, filepath.Join(t.TempDir(), "fifo"))
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	socket, err := timer.ListenSocket(server, "")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	served := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { served <- fifo.Serve(ctx) }()
	go func() { served <- socket.Serve(ctx) }()
	file := &timer.FileClient{Path: fifo.Path()}
	if err := file.Acquire("a", hour()); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("through the FIFO: %v, want EPIPE", err)
	}
	stream := &timer.SocketClient{Path: socket.Path(), Timeout: time.Millisecond}
	defer stream.Close()
	if err := stream.Acquire("a", hour()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("through the socket: %v, want os.ErrDeadlineExceeded", err)
	}
	cancel()
	for range 2 {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A server that runs takes no timer from a FIFO or a socket that nobody serves.
func TestNobodyServes(t *testing.T) {
	server, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- server.Run(t.Context()) }()
	fifo, err := timer.ListenFIFO(server, filepath.Join(t.TempDir(), "fifo"))
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	socket, err := timer.ListenSocket(server, "")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := (&timer.FileClient{Path: fifo.Path()}).Acquire("a", hour()); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("through the FIFO: %v, want EPIPE", err)
	}
	stream := &timer.SocketClient{Path: socket.Path(), Timeout: time.Millisecond}
	defer stream.Close()
	if err := stream.Acquire("a", hour()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("through the socket: %v, want os.ErrDeadlineExceeded", err)
	}
	server.Close()
	soon(t, "Server.Run", ran)
}

// Close of what StartFIFO and StartSocket return ends the server, too.
func TestCloseEndsTheServer(t *testing.T) {
	fifo, err := timer.StartFIFO(timer.Config{}, filepath.Join(t.TempDir(), "fifo"))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := timer.StartSocket(timer.Config{}, "")
	if err != nil {
		t.Fatal(errors.Join(err, fifo.Close()))
	}
	me := req(os.Getpid(), "a", now()+3600, 9)
	for what, s := range map[string]struct {
		server *timer.Server
		close  func() error
	}{"FIFO": {fifo.Server, fifo.Close}, "socket": {socket.Server, socket.Close}} {
		register(t, s.server, me)
		if err := s.close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := s.server.Register([]timer.Request{me}); err == nil {
			t.Errorf("%s: the server takes timers after Close", what)
		}
	}
}

// The progress stands still while nobody serves the socket.
func TestSocketsProgress(t *testing.T) {
	var clock atomic.Int64
	begin := time.Now()
	at := func() time.Time { return begin.Add(time.Duration(clock.Load())) }
	server, err := timer.NewServer(timer.WithClock(timer.Config{}, at))
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- server.Run(t.Context()) }()
	socket, err := timer.ListenSocket(server, "")
	if err != nil {
		t.Fatal(err)
	}
	clock.Store(int64(time.Hour))
	if got := server.Progress(); !got.Equal(begin) {
		t.Errorf("before Serve: progress %v after the begin, want 0s", got.Sub(begin))
	}
	served := make(chan error, 1)
	go func() { served <- socket.Serve(t.Context()) }()
	stream := &timer.SocketClient{Path: socket.Path()}
	defer stream.Close()
	if err := stream.Release("a"); err != nil { // it is served, and the server runs
		t.Fatal(err)
	}
	if got := server.Progress(); !got.Equal(at()) {
		t.Errorf("with Serve: progress %v after the begin, want 1h", got.Sub(begin))
	}
	socket.Close()
	soon(t, "SocketServer.Serve", served)
	if socket, err = timer.ListenSocket(server, ""); err != nil {
		t.Fatal(err)
	}
	socket.Close() // without Serve
	clock.Store(int64(2 * time.Hour))
	if got := server.Progress(); !got.Equal(at()) {
		t.Errorf("without the socket: progress %v after the begin, want 2h", got.Sub(begin))
	}
	server.Close()
	soon(t, "Server.Run", ran)
}

func TestProgressStandsStill(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		s, err := timer.NewServer(timer.Plain(timer.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		still := func(when string, want time.Time) {
			t.Helper()
			time.Sleep(time.Hour)
			if got := s.Progress(); !got.Equal(want) {
				t.Errorf("%s: progress %v after the begin, want %v", when, got.Sub(begin), want.Sub(begin))
			}
		}
		still("before Run", begin)
		ran := make(chan error, 1)
		go func() { ran <- s.Run(context.Background()) }()
		synctest.Wait()
		opened := time.Now()
		fifo, err := timer.ListenFIFO(s, filepath.Join(dir, "fifo"))
		if err != nil {
			t.Fatal(err)
		}
		still("before Serve", opened)
		fifo.Close()
		still("without the FIFO", time.Now().Add(time.Hour))
		if fifo, err = timer.ListenFIFO(s, filepath.Join(dir, "fifo")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(fifo.Path()); err != nil {
			t.Fatal(err)
		}
		failed := time.Now()
		if err := fifo.Serve(context.Background()); err == nil {
			t.Error("Serve without a FIFO: no error")
		}
		still("after Serve failed", failed)
		fifo.Close()
		s.Close()
		ended := time.Now()
		still("after Close", ended)
		<-ran
	})
}
