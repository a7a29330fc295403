//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	j := run(t, muster(t), setup{env: []string{"XDG_CACHE_HOME=" + t.TempDir(), "STATUS=0"}}, "--no-python --cache-dir "+filepath.Join(shared, "caches"), program)
	if j.status(); !strings.Contains(j.errs(), "another user may write there") {
		t.Errorf("a directory for all to write: %s", j.errs())
	}
}
