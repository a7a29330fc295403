package jobfile_test

import (
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/job/jobfile"
)

var (
	begin = jobfile.Begin{RunID: "a/b", Title: "train \"x\".py", Host: "n0", PID: 42, Started: time.Unix(1e9, 5).UTC(), MaxRestarts: 3, MaxNodes: 2}
	end   = jobfile.End{Outcome: jobfile.Failed, Cause: "rank 1: boom", Restarts: 2, Ended: time.Unix(2e9, 0).UTC()}
)

func read(t *testing.T, dir string) *jobfile.File {
	t.Helper()
	f, err := jobfile.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func create(t *testing.T, dir string) *jobfile.Writer {
	t.Helper()
	w, err := jobfile.Create(dir, begin)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// While the agent lives the file says so, and then how it ended.
func TestEnd(t *testing.T) {
	dir := t.TempDir()
	if _, err := jobfile.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	w := create(t, dir)
	for range 2 { // asking does not change it
		if diff := cmp.Diff(&jobfile.File{State: jobfile.Runs, Begin: begin}, read(t, dir)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if err := w.End(end, false); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(&jobfile.File{State: jobfile.Ended, Begin: begin, End: end}, read(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := jobfile.Create(dir, begin); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second agent in the directory: %v", err)
	}
}

// A file whose lock nobody holds is of an agent that is gone, if it had a lock.
func TestGone(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, jobfile.Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.End(end, false); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text string
		want jobfile.State
	}{
		{string(text), jobfile.Gone},
		{string(text) + `{"outcome": "succ`, jobfile.Gone}, // it died while it wrote, or the disk was full
		{strings.Replace(string(text), `"locked": true`, `"locked": false`, 1), jobfile.Unknown},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, jobfile.Name), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir); got.State != tt.want || got.Begin != begin {
			t.Errorf("%q: %+v, want %s", tt.text, got, tt.want)
		}
	}
}

// On a full disk no file is left that says nothing.
func TestFull(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, room := range []uint64{0, 10} {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: room, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		w, err := jobfile.Create(dir, begin)
		if serr := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); serr != nil {
			t.Fatal(serr)
		}
		if w != nil || !errors.Is(err, unix.EFBIG) {
			t.Errorf("%v, %v", w, err)
		}
		if _, err := os.Stat(filepath.Join(dir, jobfile.Name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file is left: %v", err)
		}
	}
}

// A file that would be the only one in a temporary directory goes with its job.
func TestTidy(t *testing.T) {
	for name, want := range map[string]bool{"": false, "attempt_0/0/stderr.log": true} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "attempt_0/0"), 0o700); err != nil {
			t.Fatal(err)
		}
		if name != "" {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := create(t, dir)
		if err := w.End(end, true); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, jobfile.Name)); (err == nil) != want {
			t.Errorf("with %q: %v", name, err)
		}
	}
	if err := (*jobfile.Writer)(nil).End(end, true); err != nil {
		t.Error(err)
	}
}

// What is not an agent's is refused, and waits for nobody.
func TestHostile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, jobfile.Name)
	refused := func(what string) {
		t.Helper()
		if f, err := jobfile.Read(dir); err == nil {
			t.Errorf("%s: %+v", what, f)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "\n", "[]", `{"version": 2}`, `{"pid": "x"}`, `{"version": 1}` + "\nx\n", `{"version": 1, "title": "` + strings.Repeat("x", 1<<20) + `"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(text[:min(len(text), 30)])
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a FIFO")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	refused("a directory")
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	refused("a link")
	if w, err := jobfile.Create(filepath.Join(dir, "none"), begin); w != nil || err == nil {
		t.Errorf("in a directory that is not there: %v, %v", w, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version": 1, "run_id": "a", "started": "2026-03-04T12:00:00Z", "locked": true}` + "\n" + `{"outcome": "failed"}` + "\n"))
	f.Add([]byte(`{"version": 1, "locked": true}` + "\n"))
	f.Add([]byte("{\n{\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, jobfile.Name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := jobfile.Read(dir)
		if err == nil && (file.State == jobfile.Runs || file.State == "") {
			t.Errorf("%+v of a file that nobody holds", file)
		}
	})
}
