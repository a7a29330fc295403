package autopsy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/wire/http10"
	"github.com/muster-run/muster/internal/wire/unixsock"
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

// parseFaulthandler reads what Python's faulthandler writes about all threads. It skips
// other lines. Of several dumps the last one counts.
// Source: dump_traceback and dump_frame in Python/traceback.c.
func parseFaulthandler(text []byte) ([]Thread, error) {
	var threads []Thread
	inside := false // a thread's frames
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if head, ok := parseThreadHead(line); ok {
			if slices.ContainsFunc(threads, func(t Thread) bool { return t.ID == head.ID }) {
				threads = nil // the beginning of the next dump
			}
			if inside = len(threads) < maxThreads; inside {
				threads = append(threads, head)
			}
		} else if inside {
			frame, ok := parseFaultFrame(line)
			if t := &threads[len(threads)-1]; ok && len(t.Frames) < maxFrames {
				t.Frames = append(t.Frames, frame)
			}
			inside = ok || strings.HasPrefix(line, "  ")
		}
	}
	if len(threads) == 0 {
		return nil, errors.New("no thread's traceback in its output")
	}
	markMain(threads)
	return tidy(threads), nil
}

// parseThreadHead reads the line before a thread's frames:
//
//	Thread 0x00007f01 (most recent call first):
//	Current thread 0x00007f01 [name] (most recent call first):
func parseThreadHead(line string) (Thread, bool) {
	rest, ok := strings.CutPrefix(line, "Thread 0x")
	if !ok {
		rest, ok = strings.CutPrefix(line, "Current thread 0x")
	}
	rest, whole := strings.CutSuffix(rest, " (most recent call first):")
	id, name, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(id, 16, 64)
	if !ok || !whole || err != nil {
		return Thread{}, false
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return Thread{Name: name, ID: "0x" + strconv.FormatUint(n, 16)}, true
}

// parseFaultFrame reads
//
//	File "/srv/train.py", line 16 in main
func parseFaultFrame(line string) (Frame, bool) {
	rest, ok := strings.CutPrefix(line, `  File "`)
	end := strings.LastIndex(rest, `", line `)
	if !ok || end < 0 {
		return Frame{}, false
	}
	number, function, ok := strings.Cut(rest[end+len(`", line `):], " in ")
	if !ok {
		return Frame{}, false
	}
	n, err := strconv.Atoi(number)
	if err != nil { // "???"
		n = 0
	}
	return Frame{Function: function, File: rest[:end], Line: n}, true
}

// markMain marks the main thread, which faulthandler does not name: the one that
// runs a module, else the oldest that threading did not start. The oldest is the last.
func markMain(threads []Thread) {
	for _, isMain := range []func(outermost string) bool{
		func(f string) bool { return f == "<module>" },
		func(f string) bool { return !strings.HasPrefix(f, "_bootstrap") },
	} {
		for i := range slices.Backward(threads) {
			if t := &threads[i]; len(t.Frames) > 0 && isMain(t.Frames[len(t.Frames)-1].Function) {
				t.Main = true
				return
			}
		}
	}
}
