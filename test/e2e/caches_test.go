//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What workers compile on one host is there on another one before its workers start, and in the
// next attempt; not what they wrote just before a failure.
func TestCompileCaches(t *testing.T) {
	t.Parallel()
	shared, program := t.TempDir(), script(t, "compiles", `#!/bin/sh
for dir in "$TORCHINDUCTOR_CACHE_DIR/ab" "$TRITON_CACHE_DIR/cd"; do
	if [ -f "$dir/kernel" ]; then echo "found $(cat "$dir/kernel")"; else echo compiles; mkdir -p "$dir"; echo "of $WHO" > "$dir/kernel"; fi
done
exit "$STATUS"
`)
	for _, tt := range []struct{ host, status, says string }{
		{"a", "1", "compiles\ncompiles\n"},
		{"b", "0", "compiles\ncompiles\n"}, // a's host failed at once
		{"c", "0", "found of b\nfound of b\n"},
		{"a", "0", "found of a\nfound of a\n"},
	} {
		want := 0
		if tt.status == "1" {
			want = 1
		}
		home := filepath.Join(shared, "host-"+tt.host)
		j := run(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + home, "WHO=" + tt.host, "STATUS=" + tt.status}},
			"--no-python --cache-dir "+filepath.Join(shared, "caches"), program).want(want).noneLeft(0)
		if j.out() != tt.says {
			t.Errorf("host %s: %q, want %q\n%s", tt.host, j.out(), tt.says, j.errs())
		}
	}
	if err := os.Chmod(filepath.Join(shared, glob(t, shared, "caches/user*")[0]), 0o777); err != nil {
		t.Fatal(err)
	}
	without := run(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + t.TempDir(), "WHO=d", "STATUS=0", "TORCHINDUCTOR_CACHE_DIR=" + t.TempDir(), "TRITON_CACHE_DIR=" + t.TempDir()}},
		"--no-python --cache-dir "+filepath.Join(shared, "caches"), program).want(0).noneLeft(0)
	if !strings.Contains(without.errs(), "another user may write there") || without.out() != "compiles\ncompiles\n" {
		t.Errorf("a directory for all to write: %q\n%s", without.out(), without.errs())
	}
}

// A directory that does not answer holds no job up for ever: its stop ends it.
func TestCompileCachesHang(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts a file system, which needs root")
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())); err != nil {
		fuse.Close()
		t.Skip("no FUSE here: ", err)
	}
	t.Cleanup(func() {
		fuse.Close() // whoever waits gets an error now
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	j := start(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + t.TempDir()}}, "--no-python -v --cache-dir "+dir, "sleep", "1000")
	for !strings.Contains(j.errs(), "rendezvous complete") {
		time.Sleep(5 * time.Millisecond)
	}
	j.signal(syscall.SIGTERM)
	j.want(1).noneLeft(0)
}
