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

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/files/tempdir"
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

// isOurs reports whether a directory is this user's alone, as the one of XDG_RUNTIME_DIR has to be.
// Root that was started with a user's environment leaves that user's alone.
func isOurs(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && safeopen.Owner(info) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}

// check says what is wrong with a user's directory for sockets; it may not be a link either.
func check(dir string, uid int) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory (%v); remove it", dir, info.Mode())
	case safeopen.Owner(info) != uid:
		return fmt.Errorf("%s belongs to user %d, not to user %d; remove it (root may), or set XDG_RUNTIME_DIR", dir,
			safeopen.Owner(info), uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %#o); remove it, or make it private: chmod 700 %s", dir,
			info.Mode().Perm(), dir)
	}
	return nil
}

// safeName is a run ID in the name of a socket: safe and short.
func safeName(runID string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, runID)
	return safe[:min(len(safe), 40)]
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
			err = check(dir, os.Geteuid())
		}
		if err == nil {
			path := filepath.Join(dir, fmt.Sprintf("%s.%d", safeName(runID), os.Getpid()))
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
	UID  int    // its user
	PID  int    // 0 if this process does not see its pid namespace
	Name string // its run ID, as far as the socket's name has it
}

// MayHave reports whether the agent's run ID can be this one. Only the agent knows it whole.
func (a *Agent) MayHave(runID string) bool { return a.Name == safeName(runID) }

// Agents returns the agents of this user on this host, for root those of all users, by path. It
// removes what agents of this user have left that were killed. The error is of a directory of
// this user that cannot be trusted.
func Agents(ctx context.Context) (found []Agent, failure error) {
	me := os.Geteuid()
	own := append(dirs(), fmt.Sprintf("/run/user/%d/muster", me)) // cron, for one, does not set XDG_RUNTIME_DIR
	all := slices.Clone(own)
	if me == 0 {
		for _, pattern := range []string{"/run/user/*/muster", "/tmp/muster-*"} {
			more, _ := filepath.Glob(pattern)
			all = append(all, more...)
		}
	}
	slices.Sort(all)
	for _, dir := range slices.Compact(all) {
		uid, ok := userOf(dir)
		if slices.Contains(own, dir) {
			uid, ok = me, true
		}
		if !ok {
			continue
		}
		agents, err := agentsIn(ctx, dir, uid)
		if found = append(found, agents...); uid == me { // anybody can make a directory for root to find
			failure = errors.Join(failure, err)
		}
	}
	return found, failure
}

// userOf returns the user whose agents have their sockets in a directory, by its name.
func userOf(dir string) (uid int, ok bool) {
	name, ok := strings.CutPrefix(filepath.Base(dir), "muster-")
	if run, under := strings.CutPrefix(dir, "/run/user/"); under {
		name, ok = strings.CutSuffix(run, "/muster")
	}
	uid, err := strconv.Atoi(name)
	return uid, ok && err == nil
}

// startTime is how long an agent may take between bind and listen.
const startTime = 10 * time.Second

func agentsIn(ctx context.Context, dir string, uid int) (found []Agent, failure error) {
	err := check(dir, uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket {
			continue
		}
		a := Agent{Path: filepath.Join(dir, e.Name()), UID: uid}
		a.Name, _, _ = strings.Cut(e.Name(), ".")
		conn, err := a.Dial(ctx)
		switch {
		case err == nil:
			p, _ := PeerOf(conn)
			conn.Close()
			a.PID = p.PID
			found = append(found, a)
		case errors.Is(err, syscall.EAGAIN): // it accepts nobody: stopped, say
			found = append(found, a)
		// in another's directory, the name may lead elsewhere by now
		case errors.Is(err, syscall.ECONNREFUSED) && uid == os.Geteuid():
			if info, gone := e.Info(); gone == nil && time.Since(info.ModTime()) > startTime {
				_ = os.Remove(a.Path)
			}
		}
	}
	return found, err
}

// Dial connects to the agent. It is an error if somebody else than its user listens there.
func (a *Agent) Dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := dial(ctx, "unix", a.Path)
	if err != nil {
		return nil, err
	}
	p, err := PeerOf(conn)
	if err == nil && p.UID != a.UID {
		err = fmt.Errorf("user %d listens at %s, not user %d", p.UID, a.Path, a.UID)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// OwnerOf returns which other user has a job on this host: the kernel tells everybody the paths
// of all sockets. job is its run ID, or its agent's pid.
func OwnerOf(job string) (uid int, ok bool) {
	sockets, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(sockets)) {
		dir, file := filepath.Split(strings.TrimSpace(line[max(0, strings.IndexByte(line, '/')):]))
		name, pid, _ := strings.Cut(file, ".")
		uid, ok = userOf(filepath.Clean(dir))
		if ok && uid != os.Geteuid() && (name == safeName(job) || pid == job) {
			return uid, true
		}
	}
	return 0, false
}
