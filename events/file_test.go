package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
func open(t *testing.T, path string) (*events.File, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	f, err := events.OpenFile(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, log
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
	if err := events.CheckFile(path); err != nil {
		t.Error(err)
	}
	first, log := open(t, path)
	first.Record(agent(events.Succeeded))
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	first.Record(agent(events.Failed)) // too late
	if err := events.CheckFile(path); err != nil {
		t.Error(err)
	}
	second, _ := open(t, path)
	if second.Path() != path {
		t.Errorf("the path is %s", second.Path())
	}
	second.Record(worker(1, events.Start))
	events.RecordLine(second, events.RdzvEvent{Name: "rendezvous.Next", RunID: "job7", Message: "joined \"round\" 0", Hostname: "h", PID: 7,
		NodeState: events.NodeRunning, MasterEndpoint: "h:1", Rank: new(0), Time: 1795233104250})
	want := []string{
		string(agent(events.Succeeded).Append(nil)), string(worker(1, events.Start).Append(nil)),
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
	f, _ := open(t, path)
	var console bytes.Buffer
	both := events.Multi(events.Console(&console), f)
	events.RecordLine(both, events.AttemptEvent{Time: time.UnixMilli(1795233104250), RunID: "job7", Hostname: "h", Host: "h", Role: "trainer",
		GroupRank: 1, Rank: new(3), LocalRank: 1, PID: 42, Restarts: 2, MaxRestarts: 5, ExitCode: -7, Signal: 7, Cause: "signal", Message: "killed",
		Ran: 90_000, Stderr: "a\nb", Step: 120, Files: "x", Action: "drain", Decision: "drained by rule r of p.yaml:3"})
	events.RecordLine(both, events.AttemptEvent{Time: time.UnixMilli(1), Host: "g", Cause: "host lost"})
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
				e := agent(events.Failed)
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
		f.Record(agent(events.Succeeded))
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
	f.Record(agent(events.Succeeded))
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
		f.Record(agent(events.Failed))
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}
	limited(size + 2)  // the newline and one byte: a line that is cut off
	limited(size + 2)  // nothing
	limited(size + 3)  // only the newline that ends the torn line
	limited(size + 10) // torn again
	f.Record(agent(events.Succeeded))
	whole := string(agent(events.Succeeded).Append(nil))
	torn := string(agent(events.Failed).Append(nil))
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
		{filepath.Join(locked, "x"), "not writable"},
		{filepath.Join(dir, strings.Repeat("x", 300)), "name too long"},
	} {
		if tt.want == "not writable" && os.Geteuid() == 0 {
			continue // root may write anywhere
		}
		err := events.CheckFile(tt.path)
		for _, err := range []error{err, func() error { _, err := events.OpenFile(tt.path, nil); return err }()} {
			bad, ok := errors.AsType[*events.PathError](err)
			if !ok || bad.Path != tt.path || !strings.Contains(err.Error(), "--event-log-file") {
				t.Errorf("%s: %v", tt.path, err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", tt.path, err, tt.want)
		}
	}
}

// A file that must be new is not made through a link, and not where there is one.
func TestCreateFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := events.CreateFile(link, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("of a link: %v", err)
	}
	f, err := events.CreateFile(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := events.CreateFile(path, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("once more: %v", err)
	}
}

func TestMulti(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	f, _ := open(t, path)
	var b bytes.Buffer
	both := events.Multi(nil, events.Console(&b), events.Null, f)
	both.Record(agent(events.Succeeded))
	events.RecordLine(both, events.RdzvEvent{Name: "x"})
	if n := strings.Count(b.String(), "\n"); n != 1 {
		t.Errorf("the console has %d lines, want the event without the rendezvous", n)
	}
	if got := contents(t, path); len(got) != 2 || got[0]+"\n" != b.String() {
		t.Errorf("the file has %q", got)
	}
	if got := events.Multi(events.Null, nil); got != events.Null {
		t.Errorf("Multi of nothing is %v", got)
	}
	if got := events.Multi(f, events.Null); got != events.Sink(f) {
		t.Errorf("Multi of one is %v", got)
	}
	events.RecordLine(events.Null, events.RdzvEvent{})
}
