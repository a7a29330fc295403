package postmortem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// entriesOf are the entries of a directory with such files, of no size.
func entriesOf(t *testing.T, mode fs.FileMode, format string, n int) []fs.DirEntry {
	t.Helper()
	files := fstest.MapFS{}
	for i := range n {
		files[fmt.Sprintf(format, i)] = &fstest.MapFile{Mode: mode}
	}
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// However many attempts, workers and autopsies a directory has, only so many are shown, and a note says so.
func TestTooMany(t *testing.T) {
	dir, rd, a := t.TempDir(), &reader{budget: maxTotal}, &Attempt{}
	rd.workers(a, entriesOf(t, fs.ModeDir, "%d", maxWorkers+1))
	if len(a.Workers) != maxWorkers || len(a.Problems) != 1 || a.Problems[0] != "there are more than 4096 workers; the rest is not shown" {
		t.Errorf("%d workers, %q", len(a.Workers), a.Problems)
	}
	a = &Attempt{Dir: dir}
	for i := range maxAutopsies + 1 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("autopsy-%d.json", i)), []byte(`{"reason": "r"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rd.autopsies(a, entriesOf(t, 0, "autopsy-%d.json", maxAutopsies+1))
	if len(a.Autopsies) != maxAutopsies || len(a.Problems) != 1 || a.Problems[0] != "there are more than 20 autopsies; the rest is not shown" {
		t.Errorf("%d autopsies, %q", len(a.Autopsies), a.Problems)
	}
	for i := range maxAttempts + 2 {
		if err := os.Mkdir(filepath.Join(dir, number{restart: i}.String()), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run, err := Read(dir)
	if err != nil || len(run.Attempts) != maxAttempts || run.Attempts[0].Name != "attempt_2" || run.Restarts != maxAttempts+1 {
		t.Fatalf("%d attempts, %v", len(run.Attempts), err)
	}
	var b strings.Builder
	if err := run.WriteText(&b); err != nil || !strings.Contains(b.String(), "  note       there are 2002 attempts; the first 2 are not shown\n") {
		t.Errorf("%v\n%.1000s", err, b.String())
	}
}

// An attempt whose directory, or log, went away while it was read is a note, and the others are read.
func TestGoneWhileRead(t *testing.T) {
	run, a, rd := &Run{}, &Attempt{Dir: filepath.Join(t.TempDir(), "attempt_0")}, &reader{budget: maxTotal}
	rd.attempt(run, a, nil)
	if len(a.Problems) != 1 || !strings.HasSuffix(a.Problems[0], "attempt_0: no such file or directory") || a.Outcome != "" {
		t.Errorf("%+v", a)
	}
	a.Problems = nil
	if f := rd.guessWorker(a, Worker{Stderr: filepath.Join(a.Dir, "0/stderr.log")}); f != nil || len(a.Problems) != 1 || !strings.Contains(a.Problems[0], "0/stderr.log: ") {
		t.Errorf("%+v, %q", f, a.Problems)
	}
	a.times(nil) // by files that are gone
	if !a.Started.IsZero() || a.Duration() != 0 || a.TimesFrom != "" {
		t.Errorf("it began at %v, by %s", a.Started, a.TimesFrom)
	}
}

// What several attempts failed with stands once; a host whose workers never started, and where the evidence is, are told.
func TestTextOfRun(t *testing.T) {
	failed := func() []*failure.ProcessFailure {
		return []*failure.ProcessFailure{{Cause: "boom", Traceback: "Traceback\nboom\n", TracebackFrom: "stderr"}}
	}
	run := &Run{RunID: "job", Attempts: []Attempt{
		{Name: "attempt_0", Cause: "boom", Failures: failed()},
		{Name: "attempt_1", Cause: "boom", Failures: failed(), Autopsies: []Autopsy{{Reason: "hang: 5 s", Summary: "2 ranks in f", File: "/logs/autopsy.txt"}}},
	}, Problems: []string{"a problem"}}
	spare := &Run{RunID: "job", Outcome: Killed, Host: "h", agent: &jobfile.File{Begin: jobfile.Begin{Host: "h", PID: 7}}}
	for want, of := range map[string]*Run{
		"  traceback (stderr):\n    Traceback\n    boom\n":                  run,
		"  traceback (stderr): the same as of attempt_0\n":                  run,
		"  note       a problem\n":                                          run,
		"(hang: 5 s):\n    2 ranks in f\n    evidence: /logs/autopsy.txt\n": run,
		"run job: was killed\n":                                             spare,
		"  workers    none were started here\n":                             spare,
	} {
		var b strings.Builder
		if err := of.WriteText(&b); err != nil || strings.Count(b.String(), want) != 1 {
			t.Errorf("%v, not once %q in\n%s", err, want, b.String())
		}
	}
}

// A stream of logs that is cut off within a frame, because the agent was killed, has ended as one between two has.
func TestPrintFramesCutOff(t *testing.T) {
	const begun = `{"kind":"out","size":9,"bytes":2}` + "\na\n"
	for _, last := range []string{"", `{"kind":"ou`, `{"kind":"out","offset":2,"size":9,"bytes":5}` + "\nab"} {
		var notes []string
		cfg := Printing{Writer: new(bytes.Buffer), Prefix: func(string, bool) string { return "" }}
		printed, err := PrintFrames(bufio.NewReader(strings.NewReader(begun+last)), cfg, true, func(what string) { notes = append(notes, what) })
		if !printed || err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the connection to the agent broke off; 7 B of lines that were written before are missing") {
			t.Errorf("%q: %v, %v, %q", last, printed, err, notes)
		}
	}
}

// failWriter fails.
type failWriter struct{}

var errFull = errors.New("no space left on device")

func (failWriter) Write([]byte) (int, error) { return 0, errFull }

// An agent cannot fill the memory with streams, and a console that is gone ends the reading.
func TestPrintFramesEnds(t *testing.T) {
	cfg := Printing{Writer: new(bytes.Buffer), Prefix: func(string, bool) string { return "" }}
	var many strings.Builder
	for rank := range maxFeeds + 1 {
		fmt.Fprintf(&many, `{"kind":"out","rank":%d}`+"\n", rank)
	}
	if _, err := PrintFrames(bufio.NewReader(strings.NewReader(many.String())), cfg, false, nil); err == nil || err.Error() != "the agent sends more than 262144 streams" {
		t.Errorf("many streams: %v", err)
	}
	cfg.Writer = failWriter{}
	in := strings.NewReader(strings.Repeat(`{"kind":"out","bytes":2}`+"\na\n", 100_000))
	if _, err := PrintFrames(bufio.NewReader(in), cfg, true, nil); !errors.Is(err, errFull) || in.Len() == 0 {
		t.Errorf("a writer that fails: %v, with %d bytes left", err, in.Len())
	}
}

// A record of the agent that cannot be believed is named once, and does not end what is followed.
func TestFollowOddRecord(t *testing.T) {
	dir := t.TempDir()
	for _, rank := range []string{"0", "1"} {
		if err := os.MkdirAll(filepath.Join(dir, "attempt_0", rank), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "attempt_0/1/stdout.log"), []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, jobfile.Name), []byte("boo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	cfg := FollowConfig{Dir: dir, Selection: Selection{Stdout: true}, Lines: -1, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Printing: Printing{Writer: &out, Prefix: func(ranks string, _ bool) string { return ranks + ":" }}}
	f := &follower{cfg: cfg, print: newPrinter(cfg.Printing, true), failed: map[string]bool{}}
	for range 2 {
		if over := f.ended(t.Context()); over != "" {
			t.Errorf("the job is over: %q", over)
		}
		if err := f.round(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.leave(), f.print.Close()); err != nil || out.String() != "1:a\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if n := strings.Count(log.String(), "a log cannot be followed"); n != 1 || !strings.Contains(log.String(), jobfile.Name) {
		t.Errorf("%d complaints:\n%s", n, log.String())
	}
}
