package unixsock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	agents, err := agentsIn(t.Context(), []string{"/nothing/here", dir})
	if err != nil || len(agents) != 1 || agents[0] != (Agent{l.path, os.Getpid()}) {
		t.Errorf("agents %v, %v", agents, err)
	}
	l.UnixListener.Close() // as a killed agent
	if agents, err := agentsIn(t.Context(), []string{dir}); agents != nil || err != nil {
		t.Errorf("agents %v, %v", agents, err)
	}
	if _, err := os.Lstat(l.path); err != nil {
		t.Errorf("a new socket is removed: its agent may be between bind and listen: %v", err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(l.path, old, old); err != nil {
		t.Fatal(err)
	}
	agentsIn(t.Context(), []string{dir})
	if _, err := os.Lstat(l.path); !os.IsNotExist(err) {
		t.Errorf("an old socket at which nobody listens: %v", err)
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
	wrong := map[string]string{open: "is open to other users (mode 0750)", link: "is no directory", file: "is no directory"}
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
		if agents, err := agentsIn(t.Context(), []string{dir}); agents != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("agents in %s: %v, %v; want %q", dir, agents, err, want)
		}
	}
}
