//go:build unix

package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/testproc"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/storetest"
)

func openFile(t testing.TB, path string) *store.File {
	t.Helper()
	s, err := store.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func files(t testing.TB, n int) []store.Store {
	path := filepath.Join(t.TempDir(), "store")
	all := make([]store.Store, n)
	for i := range all {
		all[i] = openFile(t, path)
	}
	return all
}

func TestFile(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: files})
}

// TestFileOneHandle has the goroutines share a handle.
func TestFileOneHandle(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t testing.TB, n int) []store.Store {
		return repeat(files(t, 1)[0], n)
	}})
}

func TestPrefixOfFile(t *testing.T) {
	storetest.Run(t, storetest.Subject{Shared: true, Open: underPrefix(files)})
}

// childMain is what the test binary does when a test starts it as another
// process. It reports on stdout and is controlled by stdin.
func childMain(job, path string) int {
	ctx := context.Background()
	s, err := store.OpenFile(path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	switch job {
	case "add":
		for range 100 {
			if _, err := s.Add(ctx, "n", 1); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		err = s.Barrier(ctx, "added", 3)
	case "answer": // answer each question as it comes
		for i := range 50 {
			var question []byte
			if question, err = s.Get(ctx, fmt.Sprint("question", i)); err != nil {
				break
			}
			err = s.Set(ctx, fmt.Sprint("answer", i), append(question, '!'))
		}
	case "write": // until killed
		big := make([]byte, 300<<10)
		for i := 0; err == nil; i++ {
			err = s.MultiSet(ctx, []string{"a", "b", "big"}, [][]byte{fmt.Append(nil, i), fmt.Append(nil, i), big})
			if i == 5 {
				fmt.Println("writing")
			}
		}
	case "full": // no file may grow beyond what the test has set
		signal.Ignore(syscall.SIGXFSZ)
		limit := syscall.Rlimit{Cur: 100 << 10, Max: 100 << 10}
		if err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			break
		}
		if err := s.Set(ctx, "big", make([]byte, 200<<10)); !errors.Is(err, syscall.EFBIG) {
			fmt.Println("a value that does not fit:", err)
			return 1
		}
		err = s.Set(ctx, "small", []byte("fits"))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// child starts another process.
func child(t *testing.T, job, path string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_JOB="+job, "STORE_TEST_PATH="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, out
}

// ended waits for a child that should have nothing to say.
func ended(t *testing.T, cmd *exec.Cmd, out io.Reader) {
	t.Helper()
	text, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil || len(text) > 0 {
		t.Errorf("child: %v: %s", err, text)
	}
}

func TestMain(m *testing.M) {
	testproc.Prepare()
	if job := os.Getenv("STORE_TEST_JOB"); job != "" {
		os.Exit(childMain(job, os.Getenv("STORE_TEST_PATH")))
	}
	os.Exit(m.Run())
}

func TestFileProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	var done []func()
	for range 3 {
		cmd, out := child(t, "add", path)
		done = append(done, func() { ended(t, cmd, out) })
	}
	for _, wait := range done {
		wait()
	}
	value, err := s.Get(t.Context(), "n")
	if err != nil || string(value) != "300" {
		t.Errorf("3 processes added 100 each: %s, %v", value, err)
	}
}

func TestFileQuestions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	cmd, out := child(t, "answer", path)
	for i := range 50 {
		if err := s.Set(t.Context(), fmt.Sprint("question", i), []byte("why")); err != nil {
			t.Fatal(err)
		}
		got, err := s.Get(t.Context(), fmt.Sprint("answer", i))
		if err != nil || string(got) != "why!" {
			t.Fatalf("answer %d = %q, %v", i, got, err)
		}
	}
	ended(t, cmd, out)
}

// TestFileKilled kills writers in the middle of it: what they set together must
// stay together, and others go on.
func TestFileKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	for range 5 {
		cmd, out := child(t, "write", path)
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		values, err := s.MultiGet(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(values[0], values[1]) {
			t.Fatalf("set together: %s and %s", values[0], values[1])
		}
		if err := s.Set(t.Context(), "alive", nil); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(path + ".new*")
	if err != nil || len(left) > 1 {
		t.Errorf("left over: %q, %v", left, err)
	}
}

// TestFileUnfinished cuts the last record at every byte.
func TestFileUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	set := func(key, value string) int {
		t.Helper()
		if err := s.Set(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return len(log)
	}
	whole := set("first", "1")
	all := set("second", "22")
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := whole; cut < all; cut++ {
		path := filepath.Join(t.TempDir(), "cut")
		if err := os.WriteFile(path, log[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		s := openFile(t, path)
		n, err := s.NumKeys(t.Context())
		if err != nil || n != 1 {
			t.Fatalf("cut at %d of %d: %d keys, %v", cut, all, n, err)
		}
		if err := s.Set(t.Context(), "third", nil); err != nil {
			t.Fatal(err)
		}
		n, err = openFile(t, path).NumKeys(t.Context())
		if err != nil || n != 2 {
			t.Fatalf("cut at %d of %d, then another key: %d keys, %v", cut, all, n, err)
		}
	}
	for cut := range 16 { // the header
		path := filepath.Join(t.TempDir(), "cut")
		if err := os.WriteFile(path, log[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if n, err := openFile(t, path).NumKeys(t.Context()); err != nil || n != 0 {
			t.Fatalf("cut at %d: %d keys, %v", cut, n, err)
		}
	}
}

func TestFileDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	for i := range 3 {
		if err := s.Set(t.Context(), "k", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(log []byte) []byte{
		"another file":   func([]byte) []byte { return []byte("#!/bin/sh\n") },
		"a longer file":  func([]byte) []byte { return bytes.Repeat([]byte("hello\n"), 100) },
		"a bit flipped":  func(log []byte) []byte { log[26] ^= 1; return log },
		"zeros appended": func(log []byte) []byte { return append(log, make([]byte, 100)...) },
	} {
		path := filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(path, damage(bytes.Clone(log)), 0o644); err != nil {
			t.Fatal(err)
		}
		var damaged *store.DamagedError
		if _, err := store.OpenFile(path); !errors.As(err, &damaged) {
			t.Errorf("%s: %v, want a DamagedError", name, err)
		}
	}
	// A handle that is open notices too, and nobody waits for ever.
	wait := make(chan error, 1)
	go func() { wait <- s.Wait(t.Context(), "never") }()
	if err := os.WriteFile(path, []byte("muster"), 0o644); err != nil {
		t.Fatal(err)
	}
	var damaged *store.DamagedError
	if err := <-wait; !errors.As(err, &damaged) {
		t.Errorf("wait on a file that was cut: %v, want a DamagedError", err)
	}
}

func TestFileRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openFile(t, path)
	if err := s.Set(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	wait := make(chan error, 1)
	go func() { wait <- s.Wait(t.Context(), "never") }()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := <-wait; !errors.Is(err, store.ErrRemoved) {
		t.Errorf("wait on a removed file: %v", err)
	}
	if err := s.Set(t.Context(), "k", nil); !errors.Is(err, store.ErrRemoved) {
		t.Errorf("set on a removed file: %v", err)
	}
	if _, err := store.OpenFile(filepath.Join(t.TempDir(), "none", "store")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open in a directory that does not exist: %v", err)
	}
	if _, err := store.OpenFile(t.TempDir()); err == nil {
		t.Error("a directory was opened as a store")
	}
}

func TestFileClose(t *testing.T) {
	a, b := openFile(t, filepath.Join(t.TempDir(), "a")), openFile(t, filepath.Join(t.TempDir(), "b"))
	wait := make(chan error, 1)
	go func() { _, err := a.Get(t.Context(), "never"); wait <- err }()
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-wait; !errors.Is(err, store.ErrClosed) {
		t.Errorf("get on a closed store: %v", err)
	}
	for name, err := range map[string]error{
		"set":  a.Set(t.Context(), "k", nil),
		"wait": a.Wait(t.Context(), "k"),
	} {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s on a closed store: %v", name, err)
		}
	}
	if err := b.Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
}

// TestFileRewritten has so much overwritten that the log is replaced, again and
// again, under handles that wait and write.
func TestFileRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	a, b, c := openFile(t, path), openFile(t, path), openFile(t, path)
	ctx := t.Context()
	big := bytes.Repeat([]byte("x"), 100<<10)
	if err := a.QueuePush(ctx, "q", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	const rounds = 100
	var all sync.WaitGroup
	all.Go(func() {
		for i := range rounds {
			if err := b.Wait(ctx, fmt.Sprint("round", i)); err != nil {
				t.Error(err)
				return
			}
			if _, err := b.Delete(ctx, fmt.Sprint("round", i)); err != nil {
				t.Error(err)
				return
			}
			if err := b.Set(ctx, "seen", fmt.Append(nil, i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range rounds {
		if err := a.Set(ctx, "big", big); err != nil {
			t.Fatal(err)
		}
		if err := a.Set(ctx, fmt.Sprint("round", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	info, err := os.Stat(path)
	if err != nil || info.Size() > 2<<20 {
		t.Errorf("after %d KiB the log has %d KiB, %v", rounds*len(big)>>10, info.Size()>>10, err)
	}
	for _, s := range []*store.File{a, b, c, openFile(t, path)} {
		n, err := s.NumKeys(ctx)
		if err != nil || n != 2 {
			keys, _ := s.ListKeys(ctx)
			t.Errorf("%d keys %q, %v", n, keys, err)
		}
		if n, err := s.QueueLen(ctx, "q"); err != nil || n != 1 {
			t.Errorf("queue of %d, %v", n, err)
		}
	}
}

func TestFileFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	cmd, out := child(t, "full", path)
	ended(t, cmd, out)
	keys, err := openFile(t, path).ListKeys(t.Context())
	if diff := cmp.Diff([]string{"small"}, keys); diff != "" || err != nil {
		t.Errorf("keys after a full disk (-want +got): %v\n%s", err, diff)
	}
}
