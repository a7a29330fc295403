//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A server is one that the client's load runs against.
type server struct {
	job  *job
	addr string
	name string   // contender
	life *os.File // the server ends when this is closed, at the latest with this process
}

// serve starts a contender's server and waits until it has said where it listens.
func (l *lab) serve(contender string) (*server, error) { return l.serveOn("127.0.0.1", contender) }

// serveOn lets muster's server listen on an address of this machine.
func (l *lab) serveOn(host, contender string) (*server, error) {
	var argv []string
	switch contender {
	case muster:
		argv = []string{l.musterBin, "store", "--host", host, "--port", "0"}
	case torchrun:
		argv = []string{l.python, l.server}
	default:
		argv = []string{l.echo}
	}
	return l.announced(contender, argv)
}

// announced starts a server and waits until it has said where it listens.
func (l *lab) announced(contender string, argv []string) (*server, error) {
	// The server's standard input ends with this process.
	stdin, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	j, err := l.start(argv, console{stdin: stdin, stdout: stdout})
	stdin.Close()
	stdout.Close()
	if err != nil {
		return nil, err
	}
	out.SetReadDeadline(time.Now().Add(patience))
	var text string
	b := make([]byte, 256)
	for !strings.Contains(text, "\n") {
		n, err := out.Read(b)
		if err != nil {
			return nil, fmt.Errorf("%s says no address: %w: %s", contender, err, j.console())
		}
		text += string(b[:n])
	}
	addr, ok := strings.CutPrefix(strings.TrimSpace(text), "listening on ")
	if !ok {
		return nil, fmt.Errorf("%s says %q", contender, text)
	}
	return &server{job: j, addr: addr, name: contender, life: ours}, nil
}

// stop ends the server.
func (s *server) stop() error {
	defer s.life.Close()
	s.job.signal(syscall.SIGKILL)
	if err := s.job.wait(); err != nil {
		return err
	}
	s.job.discard()
	return nil
}

func (s *server) dial() (*client, error) { return dial(s.addr, s.name == floor) }

// dialAll opens n connections, one after the other.
func (s *server) dialAll(n int) (all []*client, close func(), err error) {
	close = func() {
		for _, c := range all {
			c.Close()
		}
	}
	for range n {
		c, err := s.dial()
		if err != nil {
			close()
			return nil, nil, err
		}
		all = append(all, c)
	}
	return all, close, nil
}

// torchClient runs PyTorch's own client against the server.
func (l *lab) torchClient(s *server, seconds string) ([]byte, error) {
	host, port, _ := strings.Cut(s.addr, ":")
	cmd := exec.Command(l.python, l.client, host, port, seconds)
	cmd.Env = append(os.Environ(), l.mark)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
