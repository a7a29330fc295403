package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/events"
)

// open returns a file sink and what it logs.
func open(t *testing.T, path string) (*events.Recorder, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	f, err := events.Open(events.Config{File: path, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, log
}

// both returns a file and a console.
func both(t *testing.T, path string, console io.Writer) *events.Recorder {
	t.Helper()
	r, err := events.Open(events.Config{Handler: "console", Console: console, File: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func contents(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// A file holds the lines of the console, after what was there, and those of the
// rendezvous.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not", "there", "yet", "events.jsonl")
	first, log := open(t, path)
	first.Record(host("SUCCEEDED"))
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	first.Record(host("FAILED")) // too late
	second, _ := open(t, path)
	second.Record(worker(1, "START"))
	second.Record(events.RdzvEvent{Name: "rendezvous.Next", RunID: "job7", Message: "joined \"round\" 0", Hostname: "h", PID: 7,
		NodeState: "RUNNING", MasterEndpoint: "h:1", Rank: new(0), Time: 1795233104250})
	want := []string{
		string(host("SUCCEEDED").Append(nil)), string(worker(1, "START").Append(nil)),
		`{"name": "rendezvous.Next", "run_id": "job7", "message": "joined \"round\" 0", "hostname": "h", "pid": 7, "node_state": "RUNNING", ` +
			`"master_endpoint": "h:1", "rank": 0, "local_id": null, "error_trace": "", "timestamp": 1795233104250}`,
	}
	if diff := cmp.Diff(want, contents(t, path)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if log.Len() > 0 {
		t.Errorf("it logs %s", log)
	}
}

// A file has failed attempts, the console has not.
func TestAttempt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	var console bytes.Buffer
	both := both(t, path, &console)
	both.Record(events.AttemptEvent{Time: time.UnixMilli(1795233104250), RunID: "job7", Hostname: "h", Host: "h", Role: "trainer",
		GroupRank: 1, Rank: new(3), LocalRank: 1, PID: 42, Restarts: 2, MaxRestarts: 5, ExitCode: -7, Signal: 7, Cause: "signal", Message: "killed",
		Ran: 90_000, Stderr: "a\nb", Progress: events.Progress{Step: 120, Files: "x"}, Action: "drain", Decision: "drained by rule r of p.yaml:3"})
	both.Record(events.AttemptEvent{Time: time.UnixMilli(1), Host: "g", Cause: "host lost"})
	want := []string{
		`{"name": "muster.attempt.failed", "source": "AGENT", "timestamp": 1795233104250, "metadata": {"run_id": "job7", "global_rank": 3, "local_rank": 1, ` +
			`"group_rank": 1, "worker_pid": 42, "role": "trainer", "hostname": "h", "failed_host": "h", "agent_restarts": 2, "max_restarts": 5, ` +
			`"cause": "signal", "exit_code": -7, "signal": "SIGBUS", "message": "killed", "ran_ms": 90000, "stderr": "a\nb", "step": 120, "files": "x", ` +
			`"action": "drain", "decision": "drained by rule r of p.yaml:3"}}`,
		`{"name": "muster.attempt.failed", "source": "AGENT", "timestamp": 1, "metadata": {"run_id": "", "global_rank": null, "local_rank": 0, ` +
			`"group_rank": 0, "worker_pid": 0, "role": "", "hostname": "", "failed_host": "g", "agent_restarts": 0, "max_restarts": 0, ` +
			`"cause": "host lost", "exit_code": 0, "signal": null, "message": null, "ran_ms": 0, "stderr": null, "step": 0, "files": null, ` +
			`"action": null, "decision": null}}`,
	}
	if diff := cmp.Diff(want, contents(t, path)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if console.Len() > 0 {
		t.Errorf("the console has %s", &console)
	}
}

// Several sinks, as those of several agents, share a file.
func TestFileShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	const agents, each = 8, 50
	var wg sync.WaitGroup
	for i := range agents {
		f, _ := open(t, path)
		wg.Go(func() {
			for n := range each {
				e := host("FAILED")
				e.RawError = strings.Repeat(fmt.Sprintf("%d.%d ", i, n), 2000) // longer than a page
				f.Record(e)
			}
		})
	}
	wg.Wait()
	all := contents(t, path)
	if len(all) != agents*each {
		t.Errorf("%d lines, want %d", len(all), agents*each)
	}
	for _, line := range all {
		if !json.Valid([]byte(line)) {
			t.Fatalf("not JSON: %.200s", line)
		}
	}
}

// A disk without space costs events; there is one warning.
func TestFileFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	f, log := open(t, "/dev/full")
	for range 3 {
		f.Record(host("SUCCEEDED"))
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "no space left") {
		t.Errorf("%d warnings: %s", n, log)
	}
	if err := f.Close(); err != nil || !strings.Contains(log.String(), "events=3") {
		t.Errorf("Close: %v; %s", err, log)
	}
}

// An event that fits in part leaves those after it readable.
func TestFileTorn(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	path := filepath.Join(t.TempDir(), "events.jsonl")
	f, log := open(t, path)
	f.Record(host("SUCCEEDED"))
	size := len(contents(t, path)[0])
	limited := func(most int) {
		var was syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
		now := was
		now.Cur = uint64(most)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &now); err != nil {
			t.Fatal(err)
		}
		f.Record(host("FAILED"))
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}
	limited(size + 2)  // the newline and one byte: a line that is cut off
	limited(size + 2)  // nothing
	limited(size + 3)  // only the newline that ends the torn line
	limited(size + 10) // torn again
	f.Record(host("SUCCEEDED"))
	whole := string(host("SUCCEEDED").Append(nil))
	torn := string(host("FAILED").Append(nil))
	if diff := cmp.Diff([]string{whole, torn[:1], torn[:7], whole}, contents(t, path)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, log)
	}
}

// What cannot be written is refused at once, and does not hold anybody up.
func TestFileRefused(t *testing.T) {
	dir := t.TempDir()
	plain, fifo, locked := filepath.Join(dir, "plain"), filepath.Join(dir, "fifo"), filepath.Join(dir, "locked")
	if err := errors.Join(os.WriteFile(plain, nil, 0o600), syscall.Mkfifo(fifo, 0o600), os.Mkdir(locked, 0o500)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, want string }{
		{dir, "directory"},
		{fifo, "FIFO"},
		{filepath.Join(plain, "x"), "not a directory"},
		{filepath.Join(locked, "x"), "permission denied"},
		{filepath.Join(dir, strings.Repeat("x", 300)), "name too long"},
	} {
		if tt.want == "permission denied" && os.Geteuid() == 0 {
			continue // root may write anywhere
		}
		_, err := events.Open(events.Config{File: tt.path})
		for _, want := range []string{"event file " + tt.path + ": ", "events.Config.File", tt.want} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", tt.path, err, want)
			}
		}
	}
}

// The file of a log directory must be new, and is not made through a link.
func TestFileOfLogDirectory(t *testing.T) {
	dir := t.TempDir()
	cfg := events.Config{Handler: "file", LogDir: dir}
	path := filepath.Join(dir, events.FileName)
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := events.Open(cfg); !errors.Is(err, fs.ErrExist) {
		t.Errorf("of a link: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r, err := events.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Record(host("SUCCEEDED"))
	if err := r.Close(); err != nil || len(contents(t, path)) != 1 {
		t.Error(err, contents(t, path))
	}
	if _, err := events.Open(cfg); !errors.Is(err, fs.ErrExist) {
		t.Errorf("once more: %v", err)
	}
}

// kept is a sink of one's own.
type kept struct{ lines []events.Line }

func (k *kept) Record(l events.Line) { k.lines = append(k.lines, l) }

// File and sink get every line, the console what torchrun prints.
func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	var b bytes.Buffer
	own := &kept{}
	r, err := events.Open(events.Config{Handler: "console", Console: &b, File: path, Sink: own})
	if err != nil {
		t.Fatal(err)
	}
	r.Record(host("SUCCEEDED"))
	r.Record(events.EndEvent("job7", "h", true, nil))
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(b.String(), "\n"); n != 1 {
		t.Errorf("the console has %d lines, want the event without the rendezvous", n)
	}
	if got := contents(t, path); len(got) != 2 || got[0]+"\n" != b.String() || len(own.lines) != 2 {
		t.Errorf("the file has %q, the sink %v", got, own.lines)
	}
}

// A handler that has nowhere to write is refused.
func TestOpenNowhere(t *testing.T) {
	t.Chdir(t.TempDir())
	for handler, want := range map[string]string{"console": "Console is nil", "file": "neither File nor LogDir"} {
		r, err := events.Open(events.Config{Handler: handler})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", handler, r, err, want)
		}
	}
	if files, err := os.ReadDir("."); len(files) > 0 || err != nil {
		t.Errorf("it wrote %v, %v", files, err)
	}
}
