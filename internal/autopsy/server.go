package autopsy

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/muster-run/muster/internal/http10"
	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/internal/unixsock"
)

// maxAnswer bounds an answer of a worker server.
const maxAnswer = 16 << 20

// workerServer asks torch's worker server in the worker for its stacks.
// Source: the handler dump_traceback in torch/csrc/distributed/c10d/control_plane.
func (t *taking) workerServer(ctx context.Context, s *subject) Python {
	socket := s.socket()
	if socket == "" {
		return Python{Problems: []string{"worker server: the worker's environment names none (" + envWorkerServer + ")"}}
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout*3/10)
	defer cancel()
	text, err := post(ctx, socket, s.uid, "dump_traceback")
	if err != nil {
		return Python{Problems: []string{"worker server: " + err.Error()}}
	}
	threads, err := parseFaulthandler(text)
	if err != nil {
		return Python{Problems: []string{"worker server: dump_traceback: " + err.Error()}}
	}
	return Python{Source: "worker server", Threads: threads}
}

// socket is the path of the worker's server, "" if it has none.
func (s *subject) socket() string {
	path := s.getenv(envWorkerServer)
	if path != "" && !filepath.IsAbs(path) && s.cwd != "" {
		path = filepath.Join(s.cwd, path)
	}
	return path
}

// post runs a handler of a worker server and returns its answer. Only a server of the user
// uid is asked: a worker could name the socket of somebody who trusts us.
func post(ctx context.Context, socket string, uid int, handler string) ([]byte, error) {
	notTheirs := fmt.Errorf("the server at %s is not of the worker's user, and was asked nothing", socket)
	conn, err := dial(ctx, socket, func(info os.FileInfo) error {
		if safeopen.Owner(info) != uid {
			return notTheirs
		}
		return nil
	})
	switch {
	case err == notTheirs:
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w; does the worker run under control_plane.worker_main?", err)
	}
	defer conn.Close()
	// A user below 0 is one that this system does not tell; on Linux dial has refused that.
	if peer, err := unixsock.PeerOf(conn.(*net.UnixConn)); err != nil || uid >= 0 && peer.UID != uid {
		return nil, notTheirs
	}
	body, err := http10.Ask(ctx, conn, "POST", "/handler/"+handler, maxAnswer)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not answer in time", handler)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", handler, err)
	}
	return body, nil
}
