package timer_test

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// A peer is a Python process with PyTorch that runs a part of testdata/peer.py.
type peer struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startPeer(t *testing.T, args ...string) *peer {
	t.Helper()
	p := &peer{t: t, lines: make(chan string, 100)}
	p.cmd = exec.Command(pypeer.Python(t), append([]string{filepath.Join("testdata", "peer.py")}, args...)...)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-ended
		_ = p.cmd.Wait()
	})
	return p
}

// line waits for what the peer says next.
func (p *peer) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the peer has ended")
		}
		return line
	case <-time.After(testproc.Patience):
		p.t.Fatal("the peer says nothing")
	}
	return ""
}

func (p *peer) say(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("the peer says %q, want %q", got, want)
	}
}

// next lets the peer continue.
func (p *peer) next() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
}

// PyTorch's client, timer.configure and timer.expires, and our server.
func TestTorchClient(t *testing.T) {
	s := serve(t, timer.Config{})
	p := startPeer(t, "client", s.path())
	pid := p.cmd.Process.Pid
	p.say("inside")
	s.sync()
	list := map[string]timer.Request{}
	for _, r := range s.Live(0) {
		list[r.ScopeID] = r
	}
	for scope, want := range map[string]timer.Request{
		"plain":        req(pid, "plain", 1e11, 9),
		"whole":        req(pid, "whole", 1e11+1, 9),
		"é\"\\\n漢😀":    req(pid, "é\"\\\n漢😀", 1e11+2, 9),
		"\xed\xa0\xbd": req(pid, "\xed\xa0\xbd", 1e11+3, 9),
		"large":        req(pid, "large", 1e22, 9),
		"term":         req(pid, "term", 1e11+4, 15),
	} {
		if diff := cmp.Diff(want, list[scope]); diff != "" {
			t.Errorf("%q (-want +got)\n%s", scope, diff)
		}
		delete(list, scope)
	}
	for _, scope := range []string{"inf", "nan", "inner"} {
		if _, ok := list[scope]; !ok {
			t.Errorf("no timer %q", scope)
		}
		delete(list, scope)
	}
	// The outer one has the scope that PyTorch takes for the caller's.
	if len(list) != 1 {
		t.Errorf("more timers: %v", list)
	}
	for scope, r := range list {
		if after := r.Seconds() - now(); !strings.Contains(scope, ".py#") || after < 9000 || after > 10000 {
			t.Errorf("timer %q in %v s", scope, after)
		}
	}
	p.next()
	p.say("outside")
	s.sync()
	if got := s.Stats(); got.Timers != 8 || got.FIFO.Malformed+got.Refused != 0 {
		t.Errorf("got %+v, want 8 timers", got)
	}
}

func TestTorchHang(t *testing.T) {
	for _, tt := range []struct {
		arg  string
		want syscall.Signal
	}{{"9", syscall.SIGKILL}, {"15", syscall.SIGTERM}} {
		s := serve(t, timer.Config{})
		p := startPeer(t, "hang", s.path(), tt.arg)
		p.say("ready")
		s.event("timer expired hang")
		s.event("kill worker process hang")
		if got := endedBy(t, p.cmd); got != tt.want {
			t.Errorf("ended by %v, want %v", got, tt.want)
		}
	}
}

func TestTorchErrors(t *testing.T) {
	s := serve(t, timer.Config{})
	p := startPeer(t, "errors", s.path())
	p.say("RuntimeError: FileTimerRequest larger than 4096 bytes is not sup")
	p.say("sent")
	s.sync()
	if got := s.Stats(); got.Timers != 1 || got.FIFO.Malformed+got.Refused != 0 {
		t.Errorf("got %+v, want one timer", got)
	}
}

// Our client and PyTorch's server.
func TestTorchServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	p := startPeer(t, "server", path)
	p.say("listening")
	w := worker(t)
	client := &timer.FileClient{Path: path}
	at := time.Unix(100_000_000_000, 5e8)
	if err := client.Acquire("é\"\n", at); err != nil {
		t.Fatal(err)
	}
	want := req(os.Getpid(), "é\"\n", 1e11+0.5, 9)
	p.say(want.String())
	if err := client.Release("é\"\n"); err != nil {
		t.Fatal(err)
	}
	p.say(req(os.Getpid(), "é\"\n", -1, 0).String())
	// It acts on what we send.
	kill := req(w.Process.Pid, "late", 1, 15)
	if err := client.Send(kill); err != nil {
		t.Fatal(err)
	}
	p.say(kill.String())
	p.say("timer expired late")
	p.say("kill worker process late")
	if got := endedBy(t, w); got != syscall.SIGTERM {
		t.Errorf("ended by %v, want SIGTERM", got)
	}
	// While it reads, we do not take its FIFO away.
	if f, err := timer.StartFIFO(timer.Config{}, path); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("StartFIFO: %v, %v", f, err)
	}
	p.next()
	_ = p.cmd.Wait()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("PyTorch's server left its FIFO: %v", err)
	}
}
