package unixsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// as does something as another user. The thread that is that user ends with it.
func as(t *testing.T, uid int, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- errno
			return
		}
		done <- do()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Root finds the agents of others, believes nobody who listens in their place, and removes
// nothing of theirs.
func TestRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	uid := 1<<31 + os.Getpid()
	dir := fmt.Sprintf("/tmp/muster-%d", uid)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	find := func() (found []Agent) {
		all, err := Agents(t.Context())
		if err != nil {
			t.Log(err)
		}
		return slices.DeleteFunc(all, func(a Agent) bool { return !strings.HasPrefix(a.Path, dir) })
	}
	if found := find(); len(found) > 0 {
		t.Errorf("in root's directory with a user's name: %v", found)
	}
	if err := os.Chown(dir, uid, -1); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "theirs.7")
	var l *net.UnixListener
	as(t, uid, func() (err error) {
		l, err = Listen("unix", path)
		return err
	})
	defer l.Close()
	if _, err := listenIn([]string{dir}, "no"); err == nil {
		t.Error("root listens in another user's directory")
	}
	impostor, err := Listen("unix", filepath.Join(dir, "impostor.8"))
	if err != nil {
		t.Fatal(err)
	}
	defer impostor.Close()
	found := find()
	if want := (Agent{path, uid, os.Getpid(), "theirs"}); len(found) != 1 || found[0] != want {
		t.Fatalf("%v, want %v", found, want)
	}
	a := Agent{Path: filepath.Join(dir, "impostor.8"), UID: uid}
	if conn, err := a.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("user 0 listens at %s, not user %d", a.Path, uid)) {
		t.Errorf("the impostor: %v, %v", conn, err)
	}
	l.Close()
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if found := find(); len(found) > 0 {
		t.Errorf("%v", found)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another user's socket: %v", err)
	}
}

// An agent accepts its user and root, and nobody else, whatever the modes of the files are.
func TestStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := listenIn([]string{dir}, "r")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Chmod(l.path, 0o666))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var stranger net.Conn
	as(t, 65534, func() (err error) {
		stranger, err = dial(t.Context(), "unix", l.path)
		return err
	})
	defer stranger.Close()
	root, err := dial(t.Context(), "unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if p, err := PeerOf(conn.(*net.UnixConn)); err != nil || p.UID != 0 {
		t.Errorf("accepted %v, %v", p, err)
	}
	if n, err := stranger.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the stranger got %d bytes, %v", n, err)
	}
}
