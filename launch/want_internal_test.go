package launch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestWant(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, "want")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		want int
		text string // of the file; "": none
		is   int
		says string
	}{
		{0, "", 0, ""},
		{3, "", 3, ""},
		{1, "", 0, "want: nnodes=2:4, and 1 of them are wanted"},
		{5, "", 0, "want: nnodes=2:4, and 5 of them are wanted"},
		{0, " 4\n", 4, ""},
		{0, "five", 0, `want holds "five", which is no number of hosts`},
		{0, "-1", 0, "which is no number of hosts"},
	} {
		cfg := Config{MinNodes: 2, MaxNodes: 4, Want: tt.want}
		if tt.text != "" {
			cfg.WantFile = file(tt.text)
		}
		err := cfg.resolveWant()
		if err == nil && tt.says == "" && cfg.Want == tt.is || err != nil && tt.says != "" && strings.Contains(err.Error(), tt.says) {
			continue
		}
		t.Errorf("%d, file %q: %d, %v; want %d, %q", tt.want, tt.text, cfg.Want, err, tt.is, tt.says)
	}
}

// TestWantIn has the file where Kubernetes puts it, and what is no file.
func TestWantIn(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.Mkdir(in("..2026_11"), 0o700), os.WriteFile(in("..2026_11/want"), []byte("3"), 0o600),
		os.Symlink("..2026_11", in("..data")), os.Symlink("..data/want", in("want")),
		syscall.Mkfifo(in("fifo"), 0o600), os.Symlink("fifo", in("to-fifo")))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := readWant(in("want")); n != 3 || err != nil {
		t.Errorf("a file of a volume: %d, %v", n, err)
	}
	for _, name := range []string{"fifo", "to-fifo", "..data", "gone"} {
		if _, err := readWant(in(name)); err == nil || !strings.Contains(err.Error(), in(name)) {
			t.Errorf("%s: error %v, want one that names it", name, err)
		}
	}
}

// TestFollowWant has a file that changes, is gone for a while, and asks for what is refused.
func TestFollowWant(t *testing.T) {
	path := filepath.Join(t.TempDir(), "want")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		cfg := Config{MinNodes: 1, MaxNodes: 4, WantFile: path, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		write("2")
		if err := cfg.resolveWant(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var asked []int
		var refuses atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			cfg.followWant(ctx, time.Second, func(n int) error {
				asked = append(asked, n)
				if refuses.Load() {
					return errors.New("not now")
				}
				return nil
			})
		}()
		for _, step := range []func(){func() {}, func() { write("3") }, func() { os.Remove(path) }, func() { refuses.Store(true); write("4") }, func() { refuses.Store(false) }} {
			step()
			time.Sleep(2100 * time.Millisecond) // of the bubble: two looks
			synctest.Wait()
		}
		cancel()
		<-done
		if want := []int{3, 4, 4, 4}; !slices.Equal(asked, want) {
			t.Errorf("asked for %v, want %v", asked, want)
		}
		if n := strings.Count(log.String(), "not now"); n != 1 {
			t.Errorf("a refusal is logged %d times:\n%s", n, &log)
		}
		if !strings.Contains(log.String(), "no such file") || !strings.Contains(log.String(), path) || strings.Contains(log.String(), "asks for") {
			t.Errorf("nothing is said of a file that is gone:\n%s", &log)
		}
	})
}
