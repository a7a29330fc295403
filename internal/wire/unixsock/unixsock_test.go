package unixsock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An agent that has a socket is found; one that was killed is not, and its socket goes.
func TestAgents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120)) // more than the kernel takes
	l, err := listenIn([]string{filepath.Join(t.TempDir(), "gone", "muster"), dir}, "run/1 \x1b"+strings.Repeat("x", 100))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(l.path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
	others := filepath.Join(dir, "others")
	err = errors.Join(os.WriteFile(others+".1", nil, 0o600), os.Symlink(l.path, others+".2"))
	if err != nil {
		t.Fatal(err)
	}
	agents, err := agentsIn(t.Context(), dir, os.Geteuid())
	want := Agent{l.path, os.Geteuid(), os.Getpid(), "run_1__" + strings.Repeat("x", 33)}
	if err != nil || len(agents) != 1 || agents[0] != want {
		t.Errorf("agents %v, %v; want %v", agents, err, want)
	}
	if !want.MayHave("run/1 \x1b"+strings.Repeat("x", 50)) || want.MayHave("run/1") {
		t.Error("the run ID")
	}
	if agents, err := agentsIn(t.Context(), "/nothing/here", os.Geteuid()); agents != nil || err != nil {
		t.Errorf("agents %v, %v", agents, err)
	}
	l.UnixListener.Close() // as a killed agent
	if agents, err := agentsIn(t.Context(), dir, os.Geteuid()); agents != nil || err != nil {
		t.Errorf("agents %v, %v", agents, err)
	}
	if _, err := os.Lstat(l.path); err != nil {
		t.Errorf("a new socket is removed: its agent may be between bind and listen: %v", err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(l.path, old, old); err != nil {
		t.Fatal(err)
	}
	agentsIn(t.Context(), dir, os.Geteuid())
	if _, err := os.Lstat(l.path); !os.IsNotExist(err) {
		t.Errorf("an old socket at which nobody listens: %v", err)
	}
	if left, err := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("of what is not a socket there is %v, %v", left, err)
	}
}

// An agent that accepts nobody is there, too.
func TestStoppedAgent(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := listenIn([]string{dir}, "r")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), 0) }) // room for one
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := dial(t.Context(), "unix", l.path)
		if err != nil {
			break
		}
		defer conn.Close()
	}
	agents, err := agentsIn(t.Context(), dir, os.Geteuid())
	if want := (Agent{l.path, os.Geteuid(), 0, "r"}); err != nil || len(agents) != 1 || agents[0] != want {
		t.Errorf("agents %v, %v; want %v", agents, err, want)
	}
}

// Whose job it is, the kernel tells everybody.
func TestOwnerOf(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	theirs, ours := filepath.Join(dir, "muster-4000000001"), filepath.Join(dir, fmt.Sprint("muster-", os.Geteuid()))
	id := fmt.Sprint("owner of ", os.Getpid())
	for _, dir := range []string{theirs, ours} {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			var l *Listener
			if l, err = listenIn([]string{dir}, id+filepath.Base(dir)); err == nil {
				defer l.Close()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	newline, err := Listen("unix", filepath.Join(dir, "muster-1\n\nx"))
	if err != nil {
		t.Fatal(err)
	}
	defer newline.Close()
	if uid, ok := OwnerOf(id + "muster-4000000001"); uid != 4000000001 || !ok {
		t.Skipf("user %d, %v: needs Linux's /proc/net/unix", uid, ok)
	}
	for _, job := range []string{id, id + filepath.Base(ours), "no such"} {
		if uid, ok := OwnerOf(job); ok {
			t.Errorf("%s is user %d's", job, uid)
		}
	}
}

// A directory that others may have touched is not used.
func TestUnsafe(t *testing.T) {
	open, link := filepath.Join(t.TempDir(), "open"), filepath.Join(t.TempDir(), "link")
	file := filepath.Join(t.TempDir(), "file")
	err := os.Mkdir(open, 0o700)
	if err == nil {
		err = os.Chmod(open, 0o750)
	}
	if err == nil {
		err = os.Symlink(t.TempDir(), link)
	}
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	wrong := map[string]string{open: "is open to other users (mode 0750)", link: "is not a directory", file: "is not a directory"}
	if os.Geteuid() == 0 {
		foreign := filepath.Join(t.TempDir(), "foreign")
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(foreign, 12345, 12345); err == nil {
			wrong[foreign] = "belongs to user 12345"
		}
	}
	for dir, want := range wrong {
		if l, err := listenIn([]string{dir}, "r"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("listen in %s: %v, %v; want %q", dir, l, err, want)
		}
		if agents, err := agentsIn(t.Context(), dir, os.Geteuid()); agents != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("agents in %s: %v, %v; want %q", dir, agents, err, want)
		}
	}
}
