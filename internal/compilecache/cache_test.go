package compilecache

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// host makes the cache of one host over a shared directory.
func host(t *testing.T, shared string, set ...string) *Cache {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/cpuinfo")
	}
	c, err := New(shared, t.TempDir(), func(name string) (string, bool) {
		for _, s := range set {
			if s == name {
				return "elsewhere", true
			}
		}
		return "", false
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func put(t *testing.T, dir, path, text string) string {
	t.Helper()
	path = filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func save(t *testing.T, c *Cache, want int) {
	t.Helper()
	if n, err := c.Save(t.Context(), time.Now().Add(time.Hour)); err != nil || n != want {
		t.Fatalf("Save: %d files, %v; want %d", n, err, want)
	}
}

func seed(t *testing.T, c *Cache, want int, problem string) {
	t.Helper()
	if n, err := c.Seed(t.Context()); n != want || (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
		t.Fatalf("Seed: %d files, %v; want %d, %q", n, err, want, problem)
	}
}

// What one host compiles another one gets, once, byte for byte.
func TestCarry(t *testing.T) {
	shared := t.TempDir()
	a, b := host(t, shared), host(t, shared)
	seed(t, a, 0, "")
	put(t, a.host, "inductor/ab/kernel.py", "print()")
	put(t, a.host, "triton/xyz/kernel.cubin", strings.Repeat("cubin", 100_000))
	put(t, a.host, "inductor/empty", "")
	for _, left := range []string{"inductor/locks/kernel.lock", "inductor/x.lock", "inductor/.12.34.tmp", "triton/tmp.pid_1/k", "cuda/index", "other/file", "inductor/ab/half.so"} {
		put(t, a.host, left, "left")
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(a.host, "inductor/link")); err != nil {
		t.Fatal(err)
	}
	put(t, a.host, "inductor/half2.so", "\x7fELF"+strings.Repeat("\xff", 100))
	n, err := a.Save(t.Context(), time.Now().Add(-time.Hour))
	if n != 0 || err != nil {
		t.Errorf("Save of what was written an hour ago: %d, %v", n, err)
	}
	save(t, a, 3)
	save(t, a, 0)
	seed(t, b, 3, "")
	seed(t, b, 0, "")
	seed(t, a, 0, "")
	for path, want := range map[string]string{"inductor/ab/kernel.py": "print()", "triton/xyz/kernel.cubin": strings.Repeat("cubin", 100_000), "inductor/empty": ""} {
		got, err := os.ReadFile(filepath.Join(b.host, path))
		if err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
		if info, _ := os.Stat(filepath.Join(b.host, path)); info == nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v", path, info)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(b.host, "*", ".*")); left != nil {
		t.Errorf("left: %q", left)
	}
}

// A program of the linker's is carried whole.
func TestSharedObject(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	a := host(t, shared)
	for n, want := range map[int]bool{len(text): true, len(text) - 1: false, len(text) / 2: false, 64: false, 10: false} {
		f, err := os.Open(put(t, a.host, "x.so", string(text[:n])))
		if err != nil {
			t.Fatal(err)
		}
		if got := whole(f, int64(n)); got != want {
			t.Errorf("%d of %d bytes: %v", n, len(text), got)
		}
		f.Close()
	}
}

// What the user has put elsewhere is left there.
func TestOwnPlace(t *testing.T) {
	shared := t.TempDir()
	a := host(t, shared)
	put(t, a.host, "inductor/x", "x")
	put(t, a.host, "triton/y", "y")
	save(t, a, 2)
	b := host(t, shared, "TRITON_CACHE_DIR")
	if env := b.Env(); env["TRITON_CACHE_DIR"] != "" || env["TORCHINDUCTOR_CACHE_DIR"] != filepath.Join(b.host, "inductor") || env["CUDA_CACHE_PATH"] == "" {
		t.Errorf("%v", env)
	}
	seed(t, b, 1, "")
}

// A file that cannot be saved does not keep others from it, nor does a cache that cannot be looked at.
func TestOneBadFile(t *testing.T) {
	a := host(t, t.TempDir())
	put(t, a.host, "inductor/good", "good")
	put(t, a.host, "inductor/a\xff/bad", "bad")
	if err := os.Symlink(t.TempDir(), filepath.Join(a.host, "triton")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Save(t.Context(), time.Now().Add(time.Hour)); n != 1 || err == nil {
		t.Errorf("Save: %d files, %v", n, err)
	}
}

// A link in the place of the user's directory leads nowhere, and what it points to stays.
func TestLinkedDirectory(t *testing.T) {
	shared, home := t.TempDir(), t.TempDir()
	c := host(t, shared)
	if err := os.Remove(c.shared); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(home, c.shared); err != nil {
		t.Fatal(err)
	}
	mine := put(t, home, "thesis.tex", "thesis")
	old := time.Now().Add(-10 * stale)
	if err := os.Chtimes(mine, old, old); err != nil {
		t.Fatal(err)
	}
	put(t, c.host, "inductor/x", "x")
	if _, err := New(shared, t.TempDir(), func(string) (string, bool) { return "", false }, c.log); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("New: %v", err)
	}
	if n, err := c.Save(t.Context(), time.Now().Add(time.Hour)); n != 0 || err == nil {
		t.Errorf("Save: %d, %v", n, err)
	}
	if n, err := c.Seed(t.Context()); n != 0 || err == nil {
		t.Errorf("Seed: %d, %v", n, err)
	}
	if left, _ := os.ReadDir(home); len(left) != 1 || left[0].Name() != "thesis.tex" {
		t.Errorf("the home has %v", left)
	}
}

// An entry that is damaged, of somebody else, or leads out of the caches is not used.
func TestBadEntries(t *testing.T) {
	entry := func(path, header, body string) (name, text string) {
		head := header + fmt.Sprintf(" %q\n", path)
		return entryName(path), head + body + fmt.Sprintf("%x\n", sha256.Sum256([]byte(head+body)))
	}
	for what, tt := range map[string]struct {
		make func(dir string)
		want string
	}{
		"damaged": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4", "text")
			put(t, dir, name, strings.Replace(text, "text", "tex7", 1))
		}, "it is damaged"},
		"short": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4", "text")
			put(t, dir, name, text[:len(text)-9])
		}, "unexpected EOF"},
		"another path": {func(dir string) {
			_, text := entry("inductor/x", magic+" 700 4", "text")
			put(t, dir, entryName("inductor/y"), text)
		}, "is not the entry of"},
		"out of it": {func(dir string) {
			name, text := entry("../../x", magic+" 700 4", "text")
			put(t, dir, name, text)
		}, "is not the entry of"},
		"another release": {func(dir string) {
			name, text := entry("inductor/x", "muster-compile-cache 2 700 4", "text")
			put(t, dir, name, text)
		}, "is no entry of this release"},
		"set-user-ID": {func(dir string) {
			name, text := entry("inductor/x", magic+" 4700 4", "text")
			put(t, dir, name, text)
		}, "is no entry of this release"},
		"large": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4000000000000", "text")
			put(t, dir, name, text)
		}, "has another size"},
		"much more": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4", "text")
			put(t, dir, name, text+strings.Repeat("x", 10_000))
		}, "has another size"},
		"a link": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4", "text")
			if err := os.Symlink(put(t, dir, "target", text), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"for all to write": {func(dir string) {
			name, text := entry("inductor/x", magic+" 700 4", "text")
			if err := os.Chmod(put(t, dir, name, text), 0o666); err != nil {
				t.Fatal(err)
			}
		}, "another user may have written it"},
		"no header": {func(dir string) { put(t, dir, entryName("x"), strings.Repeat("x", 1<<20)) }, "is no entry"},
	} {
		t.Run(what, func(t *testing.T) {
			c := host(t, t.TempDir())
			tt.make(c.shared)
			seed(t, c, 0, tt.want)
			if found, _ := filepath.Glob(filepath.Join(c.host, "*", "*")); found != nil {
				t.Errorf("the host has %q", found)
			}
			if found, _ := filepath.Glob(filepath.Join(c.host, "*", ".*")); found != nil {
				t.Errorf("the host has %q", found)
			}
		})
	}
}

// A directory that others may write to is refused, and what a host that died was writing is removed.
func TestSharedDirectory(t *testing.T) {
	shared := t.TempDir()
	c := host(t, shared)
	left, own := put(t, c.shared, ".muster-12-34", "half"), put(t, c.shared, "notes", "of the user")
	save(t, c, 0)
	if _, err := os.Stat(left); err != nil {
		t.Error("what may still be written is removed")
	}
	for _, path := range []string{left, own} {
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-2*stale)); err != nil {
			t.Fatal(err)
		}
	}
	save(t, c, 0)
	if _, err := os.Stat(left); err != nil {
		t.Error("the directory is looked at where the host has nothing new")
	}
	put(t, c.host, "inductor/new", "x")
	save(t, c, 1)
	if _, err := os.Stat(left); err == nil {
		t.Error("what is not finished stays")
	}
	if _, err := os.Stat(own); err != nil {
		t.Error("what is not muster's is removed")
	}
	if err := os.Chmod(c.shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(shared, t.TempDir(), func(string) (string, bool) { return "", false }, c.log); err == nil || !strings.Contains(err.Error(), "another user may write there") {
		t.Errorf("New: %v", err)
	}
}

// What an agent that was killed was writing to the host is removed.
func TestHostTemporaries(t *testing.T) {
	c := host(t, t.TempDir())
	old, young := put(t, c.host, "inductor/a/.muster-12-34", "half"), put(t, c.host, "inductor/a/.muster-12-35", "half")
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*stale)); err != nil {
		t.Fatal(err)
	}
	seed(t, c, 0, "")
	if left := must(filepath.Glob(filepath.Join(c.host, "inductor/a/.muster-*"))); len(left) != 1 || left[0] != young {
		t.Errorf("left: %v", left)
	}
}

// The newest entries are seeded first: there may be no time for all.
func TestNewestFirst(t *testing.T) {
	shared := t.TempDir()
	c := host(t, shared)
	for i := range 3 {
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(put(t, c.host, fmt.Sprint("inductor/", i), "x"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	save(t, c, 3)
	for i := range 3 { // and is said first
		path := filepath.Join(c.shared, entryName(fmt.Sprint("inductor/", i)))
		info := must(os.Stat(path))
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	seed(t, host(t, shared), 0, entryName("inductor/2"))
}

// The shared directory is bounded: the oldest entries go.
func TestLimit(t *testing.T) {
	c := host(t, t.TempDir())
	c.limit = 2500
	for i := range 4 {
		path := put(t, c.host, fmt.Sprint("inductor/", i), strings.Repeat("x", 1000))
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		save(t, c, 1)
	}
	save(t, c, 0)
	entries := must(filepath.Glob(filepath.Join(c.shared, "*")))
	if len(entries) != 2 {
		t.Errorf("%d entries", len(entries))
	}
	if _, err := os.Stat(filepath.Join(c.shared, entryName("inductor/3"))); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The end of the context ends it.
func TestCanceled(t *testing.T) {
	c := host(t, t.TempDir())
	put(t, c.host, "inductor/x", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Save(ctx, time.Now()); err != context.Canceled {
		t.Error(err)
	}
}

func FuzzReadHeader(f *testing.F) {
	f.Add(magic + " 700 4 \"inductor/x\"\n")
	f.Fuzz(func(t *testing.T, s string) {
		path, mode, size, err := readHeader(bufio.NewReader(io.LimitReader(strings.NewReader(s), 1<<16)), sha256.New())
		if err == nil && (mode&^0o700 != 0 || size < 0) {
			t.Errorf("%q %v %d", path, mode, size)
		}
	})
}
