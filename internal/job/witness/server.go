// Package witness asks workers what PyTorch's flight recorder has kept, and what their threads do.
//
// A worker's interpreter finds sitecustomize.py in the directory of a Server, by PYTHONPATH, and
// runs it before the worker's own. Once the worker imports torch.distributed it connects to the
// Server's socket, and a thread of it answers. It needs the interpreter's lock for that: a
// worker that is stopped, or holds the lock, does not answer.
package witness

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/job/flight"
	"github.com/muster-run/muster/internal/wire/unixsock"
)

//go:embed sitecustomize.py
var module []byte

// errAbsent says that nothing in a worker answers: it runs no Python, has not imported
// torch.distributed, or was started without site (-S, -I, -E).
var errAbsent = errors.New("nothing in the worker answers for PyTorch's flight recorder")

// A Server is what the workers of a host connect to. Its methods may be called concurrently.
type Server struct {
	dir      string
	listener *net.UnixListener
	work     sync.WaitGroup
	answers  chan<- struct{} // closed by accept at the first connection

	mu    sync.Mutex // guards conns
	conns []*conn    // in the order in which they came; nil once closed
}

// A conn is a process that answers. Who has the slot may use the connection.
type conn struct {
	*net.UnixConn
	pid  int
	slot chan struct{}
}

// prefix begins the name of a Server's directory.
const prefix = "muster-witness-"

// maxConns bounds the connections: a worker has one.
const maxConns = 1024

// Listen makes the directory and the socket, and begins to accept. It closes answers once there is a worker that
// can be asked: until then nobody needs to try. The caller calls Close.
func Listen(answers chan<- struct{}) (_ *Server, err error) {
	s := &Server{answers: answers, conns: []*conn{}}
	if s.dir, err = os.MkdirTemp(tempdir.ForSocket(), prefix); err != nil {
		return nil, err
	}
	err = os.WriteFile(filepath.Join(s.dir, "sitecustomize.py"), module, 0o600)
	if err == nil {
		s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(s.dir, "agent"), Net: "unix"})
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	s.work.Go(s.accept)
	return s, nil
}

// Close ends all connections and removes the directory.
func (s *Server) Close() {
	s.listener.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.work.Wait()
	os.RemoveAll(s.dir)
}

// Dir is the directory, with the files Files.
func (s *Server) Dir() string { return s.dir }

// Files are what is in the directory, or may be with so many workers.
func (s *Server) Files(workers int) []string {
	files := []string{filepath.Join(s.dir, "sitecustomize.py"), filepath.Join(s.dir, "agent")}
	for i := range workers {
		files = append(files, s.left(i))
	}
	return files
}

func (s *Server) left(localRank int) string {
	return filepath.Join(s.dir, fmt.Sprint("end-", localRank))
}

// PythonPath is PYTHONPATH for workers that would inherit env.
func (s *Server) PythonPath(env []string) string {
	own := ""
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PYTHONPATH="); ok {
			own = value
		}
	}
	return strings.TrimSuffix(s.dir+string(os.PathListSeparator)+own, string(os.PathListSeparator))
}

// Without is PYTHONPATH without the directory of any Server, which differs from run to run.
func Without(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool {
		return strings.HasPrefix(filepath.Base(dir), prefix)
	})
	return strings.Join(dirs, string(os.PathListSeparator))
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			return // it is closed, or out of descriptors
		}
		peer, err := unixsock.PeerOf(c)
		s.mu.Lock()
		s.conns = slices.DeleteFunc(s.conns, func(old *conn) bool {
			ended := unix.Kill(old.pid, 0) == unix.ESRCH
			if ended {
				old.Close()
			}
			return ended
		})
		if err != nil || peer.UID != os.Geteuid() || peer.PID <= 0 || s.conns == nil || len(s.conns) >= maxConns {
			c.Close()
		} else {
			s.conns = append(s.conns, &conn{c, peer.PID, make(chan struct{}, 1)})
			if s.answers != nil {
				close(s.answers)
				s.answers = nil
			}
		}
		s.mu.Unlock()
	}
}

func (s *Server) drop(c *conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(other *conn) bool { return other == c })
}

// of returns the connection of a worker: its own or, where it is a script, its first descendant's.
func (s *Server) of(pid int) *conn {
	s.mu.Lock()
	conns := slices.Clone(s.conns)
	s.mu.Unlock()
	var found *conn
	for _, c := range conns {
		if c.pid == pid {
			return c
		}
		if own, _ := procfs.Descends(c.pid, pid); own && found == nil {
			found = c
		}
	}
	return found
}

// Status asks a worker how far it is in each group. Everything asks for all that it knows. Both
// return ctx's error if no answer came until its end.
func (s *Server) Status(ctx context.Context, pid int) ([]byte, error) { return s.ask(ctx, pid, 's') }

func (s *Server) Everything(ctx context.Context, pid int) ([]byte, error) {
	return s.ask(ctx, pid, 'd')
}

// Left returns what the last worker of a local rank knew at its end, like Everything, but no stacks. It has ended by
// itself, through Python's exit, after a time, and at the one that Left returns.
func (s *Server) Left(localRank int, after time.Time) ([]byte, time.Time, error) {
	info, err := os.Stat(s.left(localRank))
	if err != nil || info.ModTime().Before(after) || info.Size() > 2*flight.MaxSize {
		return nil, time.Time{}, errAbsent
	}
	body, err := os.ReadFile(s.left(localRank))
	return body, info.ModTime(), err
}

func (s *Server) ask(ctx context.Context, pid int, what byte) ([]byte, error) {
	c := s.of(pid)
	if c == nil {
		return nil, errAbsent
	}
	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type result struct {
		body []byte
		err  error
	}
	done := make(chan result, 1)
	go func() { // the answer of a worker that was stopped may come later, and is read then
		body, err := c.ask(what)
		if err != nil {
			s.drop(c)
		}
		<-c.slot
		done <- result{body, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && len(r.body) > 0 && r.body[0] == '!' {
			r.err = fmt.Errorf("the worker cannot read its flight recorder: %.200q", r.body[1:])
		}
		return r.body, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ask sends a request and reads the answer, which its length precedes.
func (c *conn) ask(what byte) ([]byte, error) {
	var head [8]byte
	if _, err := c.Write([]byte{what}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint64(head[:])
	if size > 2*flight.MaxSize {
		return nil, fmt.Errorf("the worker's answer has %d bytes, more than %d", size, 2*flight.MaxSize)
	}
	body, err := io.ReadAll(io.LimitReader(c, int64(size)))
	if err == nil && len(body) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	return body, err
}
