package warm

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/process"
)

// A Server is a template that this program has had as a child since its beginning: who executed
// the program has forked it before. muster.run makes it for start_method fork and forkserver
// (python/muster/_forkserver.py).
type Server struct {
	life  context.Context // ends when nobody is to wait for the server
	t     *template
	ready func() error // waits until it has loaded what the workers run
}

// NewServer takes over the socket to it, which is the descriptor fd. The caller closes the Server.
func NewServer(ctx context.Context, fd int, log *slog.Logger) (*Server, error) {
	f := os.NewFile(uintptr(uint32(fd)), "server") // a negative one is the number of no file
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("descriptor %d is not a Unix socket", fd)
	}
	t := &template{
		program: &program{}, host: &Host{log: log}, conn: unix,
		frames: make(chan []string, 64), ended: make(chan struct{}), unread: make(chan struct{}),
	}
	t.host.work.Go(t.read)
	hello, err := t.next(ctx, answerTime)
	var p *os.Process
	if err == nil {
		p, err = named(hello)
	}
	if err != nil {
		close(t.unread)
		conn.Close()
		return nil, fmt.Errorf("the server of start_method: %w", err)
	}
	pid := p.Pid
	children.Add(pid)
	t.cmd = &exec.Cmd{Process: p}
	t.host.work.Go(func() {
		_, _ = p.Wait()
		children.Forget(pid)
		close(t.ended)
	})
	s := &Server{life: ctx, t: t}
	s.ready = sync.OnceValue(func() error {
		if err := t.send(nil, string(source)); err != nil {
			return err
		}
		if err := t.send(nil, "import", "", "0"); err != nil {
			return err
		}
		answer, err := t.next(s.life, time.Duration(math.MaxInt64))
		if err == nil && answer[0] != "ready" {
			err = fmt.Errorf("the server answered %q", answer)
		}
		return err
	})
	return s, nil
}

// named finds the process that a server says it is: a child of this one.
func named(hello []string) (*os.Process, error) {
	pid := 0
	if hello[0] == "server" && len(hello) == 2 {
		pid, _ = strconv.Atoi(hello[1])
	}
	if st, err := procfs.Read(pid); pid <= 1 || err != nil || st.Parent != os.Getpid() {
		return nil, fmt.Errorf("%q names no child of this process", hello)
	}
	return os.FindProcess(pid)
}

// Fork is for process.Config.Fork.
func (s *Server) Fork(img process.Image, adopt func(int) error) error {
	if err := s.ready(); err != nil {
		return err
	}
	return s.t.fork(img, adopt, false)
}

// Close ends the server. Its workers stay.
func (s *Server) Close() {
	s.t.close()
	s.t.host.work.Wait()
}
