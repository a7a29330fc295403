package quorum

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What members that were killed left goes; what others have does not.
func TestSweep(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	make := func(name string, age time.Duration, files ...string) {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	make("muster-quorum-killed", 0, lockName, "wal")
	make("muster-quorum-killed-early", time.Hour)
	make("muster-quorum-new", 0)
	make("muster-quorum-data-dir", time.Hour, "wal")
	make("somebody-else", time.Hour, lockName)
	mine, unlock, err := lockedTemp(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	sweep(parent, slog.New(slog.DiscardHandler))
	for name, want := range map[string]bool{
		"muster-quorum-killed": false, "muster-quorum-killed-early": false,
		"muster-quorum-new": true, "muster-quorum-data-dir": true, "somebody-else": true, filepath.Base(mine): true,
	} {
		if _, err := os.Stat(filepath.Join(parent, name)); (err == nil) != want {
			t.Errorf("%s: is there: %v, want %v", name, err == nil, want)
		}
	}
	unlock()
	sweep(parent, slog.New(slog.DiscardHandler))
	if _, err := os.Stat(mine); err == nil {
		t.Errorf("%s is still there after its process's end", mine)
	}
}

// A directory is never swept from under the process that has just made it.
func TestSweepBesideStarts(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	var starts, sweeps sync.WaitGroup
	var ended atomic.Bool
	for range 4 {
		sweeps.Go(func() {
			for !ended.Load() {
				sweep(parent, slog.New(slog.DiscardHandler))
			}
		})
		starts.Go(func() {
			for range 500 {
				dir, unlock, err := lockedTemp(parent)
				if err != nil {
					t.Errorf("lockedTemp: %v", err)
					return
				}
				if err := os.WriteFile(filepath.Join(dir, "cert.pem"), nil, 0o600); err != nil {
					t.Errorf("a directory that is locked: %v", err)
				}
				unlock()
			}
		})
	}
	starts.Wait()
	ended.Store(true)
	sweeps.Wait()
}
