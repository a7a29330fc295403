package autopsy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
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

// post runs a handler of a worker server and returns its answer. HTTP/1.0 makes
// the server close the connection after it, and send it in one piece. Only a server of
// the user uid is asked: a worker could name the socket of somebody who trusts us.
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
	if !isOf(conn, uid) {
		return nil, notTheirs
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = io.WriteString(conn, "POST /handler/"+handler+" HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
	var body []byte
	if err == nil {
		body, err = readAnswer(conn)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not answer in time", handler)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", handler, err)
	}
	return body, nil
}

// readAnswer reads an HTTP answer. It does without net/http, which the agent does not link.
func readAnswer(r io.Reader) ([]byte, error) {
	in := bufio.NewReader(io.LimitReader(r, maxAnswer+64<<10))
	header := func() (string, error) {
		line, err := in.ReadSlice('\n')
		return strings.TrimRight(string(line), "\r\n"), unexpected(err)
	}
	status, err := header()
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(status)
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "HTTP/1.") {
		return nil, fmt.Errorf("%q is not the beginning of an HTTP answer", cut(status, 80))
	}
	length := -1
	for {
		line, err := header()
		if err != nil {
			return nil, err
		}
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil || length < 0 || length > maxAnswer {
				return nil, fmt.Errorf("an answer of %s bytes; the limit is %d", cut(value, 40), maxAnswer)
			}
		case "transfer-encoding":
			return nil, fmt.Errorf("transfer encoding %q in an answer to HTTP/1.0", cut(value, 40))
		}
	}
	most := length
	if length < 0 {
		most = maxAnswer + 1
	}
	body, err := io.ReadAll(io.LimitReader(in, int64(most)))
	switch {
	case err != nil:
		return nil, err
	case len(body) < length:
		return nil, io.ErrUnexpectedEOF
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("an answer of more than %d bytes", maxAnswer)
	case fields[1] != "200":
		return nil, fmt.Errorf("%s: %s", strings.Join(fields[1:], " "), cut(strings.TrimSpace(string(body)), 300))
	}
	return body, nil
}

// unexpected makes an error of an end that comes too early.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
