package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/internal/tempdir"
)

// dirs are where this user's agents have their sockets; an agent takes the first one that it
// can use. /tmp is among them whatever TMPDIR says, because a scheduler may give each job a
// TMPDIR of its own.
func dirs() []string {
	own := "muster-" + strconv.Itoa(os.Geteuid())
	var all []string
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) && isOurs(run) {
		all = append(all, filepath.Join(run, "muster"))
	}
	all = append(all, filepath.Join("/tmp", own))
	if dir := filepath.Join(tempdir.Find(), own); !slices.Contains(all, dir) {
		all = append(all, dir)
	}
	return all
}

// isOurs says whether a directory is this user's alone, as the one of XDG_RUNTIME_DIR has to be.
// Root that was started with a user's environment leaves that user's alone.
func isOurs(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && safeopen.Owner(info) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}

// check says what is wrong with a directory for sockets; it may not be a link either.
func check(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no directory (%v); remove it", dir, info.Mode())
	case safeopen.Owner(info) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to this user (%d); remove it", dir, safeopen.Owner(info), os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %#o); remove it, or make it private: chmod 700 %s", dir, info.Mode().Perm(), dir)
	}
	return nil
}

// fileName is the name of an agent's socket: its run ID, made safe and short, and its pid.
func fileName(runID string, pid int) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, runID)
	return fmt.Sprintf("%s.%d", safe[:min(len(safe), 40)], pid)
}

// A Listener is an agent's socket. It accepts nobody but this user and root.
type Listener struct {
	*net.UnixListener
	path string
}

// ListenAgent makes the socket of this process, the agent of a run.
func ListenAgent(runID string) (*Listener, error) { return listenIn(dirs(), runID) }

func listenIn(dirs []string, runID string) (*Listener, error) {
	var failure error
	for _, dir := range dirs {
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			err = check(dir)
		}
		if err == nil {
			path := filepath.Join(dir, fileName(runID, os.Getpid()))
			var l *net.UnixListener
			if l, err = Listen("unix", path); err == nil {
				return &Listener{l, path}, nil
			}
		}
		if failure != nil {
			err = fmt.Errorf("%w; %w", failure, err)
		}
		failure = err
	}
	return nil, failure
}

// Accept returns the next connection of this user or root.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if p, err := PeerOf(conn); err == nil && (p.UID == os.Geteuid() || p.UID == 0) {
			return conn, nil
		}
		conn.Close()
	}
}

// Close removes the socket.
func (l *Listener) Close() error {
	_ = os.Remove(l.path) // before another may take its place
	return l.UnixListener.Close()
}

// An Agent listens at a socket.
type Agent struct {
	Path string
	PID  int // 0 if this process does not see its pid namespace
}

// Agents returns the agents of this user on this host, by path. It removes what agents have
// left that were killed. The error is of a directory that cannot be trusted.
func Agents(ctx context.Context) ([]Agent, error) {
	all := dirs()
	if run := fmt.Sprintf("/run/user/%d", os.Geteuid()); isOurs(run) { // cron, for one, does not set XDG_RUNTIME_DIR
		if dir := filepath.Join(run, "muster"); !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	return agentsIn(ctx, all)
}

// startTime is how long an agent may take between bind and listen.
const startTime = 10 * time.Second

func agentsIn(ctx context.Context, dirs []string) (found []Agent, failure error) {
	for _, dir := range dirs {
		err := check(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var entries []fs.DirEntry
		if err == nil {
			entries, err = os.ReadDir(dir)
		}
		failure = errors.Join(failure, err)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			conn, err := DialAgent(ctx, path)
			if err == nil {
				p, _ := PeerOf(conn)
				conn.Close()
				found = append(found, Agent{path, p.PID})
			} else if info, gone := e.Info(); gone == nil && errors.Is(err, syscall.ECONNREFUSED) && time.Since(info.ModTime()) > startTime {
				_ = os.Remove(path)
			}
		}
	}
	return found, failure
}

// DialAgent connects to the agent that listens at path. It is an error if that is another
// user's.
func DialAgent(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := dial(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	p, err := PeerOf(conn)
	if err == nil && p.UID != os.Geteuid() && os.Geteuid() != 0 {
		err = fmt.Errorf("%s belongs to user %d", path, p.UID)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
