package postmortem

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// Durations have the precision that people want.
func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", -time.Second: "-", time.Microsecond: "1 ms", 999 * time.Millisecond: "999 ms", time.Second: "1.0 s",
		9900 * time.Millisecond: "9.9 s", 10 * time.Second: "10 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min 0 s",
		61*time.Minute + 5*time.Second: "61 min 5 s", 2 * time.Hour: "2 h 0 min", 50*time.Hour + 59*time.Minute: "50 h 59 min",
	} {
		if got := span(d); got != want {
			t.Errorf("%d ns: got %q, want %q", d, got, want)
		}
	}
}

// Of a long text the end is left, from the beginning of a line on.
func TestParagraph(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", " \r\n\n", ""},
		{"lines", "a  \r\n\tb\n\n", "a\n b"},
		{"an escape", "\x1b[31mred\x1b[0m", "red"},
		{"long", strings.Repeat("x", maxTraceback) + "\nlast\n", "last"},
		{"one long line", strings.Repeat("x", maxTraceback+1), ""},
	} {
		if got := paragraph(tt.in); got != tt.want {
			t.Errorf("%s: got %.80q, want %q", tt.name, got, tt.want)
		}
	}
}

// One attempt is chosen by its name; the error names those that there are, of many the first and the last.
func TestOnly(t *testing.T) {
	attempts := func(n int) *Run {
		run := &Run{Dir: "/logs/job; rm -r /"}
		for i := range n {
			run.Attempts = append(run.Attempts, Attempt{Name: number{i, 0}.String()})
		}
		return run
	}
	run := attempts(3)
	if err := run.Only("attempt_1"); err != nil || len(run.Attempts) != 1 || run.Last().Name != "attempt_1" {
		t.Errorf("got %v, %v", run.Attempts, err)
	}
	for n, want := range map[int]string{
		0:  "choose from ",
		2:  "choose from attempt_0, attempt_1",
		10: "choose from attempt_0, attempt_1, attempt_2, attempt_3, attempt_4, attempt_5, attempt_6, attempt_7, attempt_8, attempt_9",
		20: "choose from attempt_0, attempt_1, attempt_2, attempt_3, ..., attempt_15, attempt_16, attempt_17, attempt_18, attempt_19",
	} {
		run := attempts(n)
		err := run.Only("attempt_99")
		if err == nil || !strings.HasSuffix(err.Error(), " has no attempt_99; "+want) || len(run.Attempts) != n {
			t.Errorf("of %d: got %v, want %q", n, err, want)
		}
		if strings.Contains(err.Error(), "job; rm") {
			t.Errorf("the directory's name reads as advice: %v", err)
		}
	}
	if attempts(0).Last() != nil {
		t.Error("a run without attempts has a last one")
	}
}

// Global ranks can be chosen where they are known.
func TestKnowsRanks(t *testing.T) {
	for _, tt := range []struct {
		workers []Worker
		want    bool
	}{{[]Worker{{Rank: 8}}, true}, {[]Worker{{Rank: -1}}, false}, {nil, false}} {
		if got := (&Attempt{Workers: tt.workers}).KnowsRanks(); got != tt.want {
			t.Errorf("%v: got %t, want %t", tt.workers, got, tt.want)
		}
	}
}

// Names that are not quite those of an attempt are not taken for one.
func TestNamesOfFiles(t *testing.T) {
	for name, want := range map[string]bool{
		"attempt_0": true, "attempt_10": true, "attempt_1.2": true,
		"attempt_": false, "attempt_01": false, "attempt_+1": false, "attempt_-1": false, "attempt_1.0": false, "attempt_1.": false,
		"attempt_1.2.3": false, "attempt_9999999999999999999999": false, "Attempt_1": false,
	} {
		if got := IsAttempt(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}

// Long lists are cut off, and say of how much.
func TestListsAreCutOff(t *testing.T) {
	var b strings.Builder
	p, a := &failure.Preemption{}, &Attempt{Dir: "/logs/attempt_0", LeftOut: 3}
	for i := range shownOthers + 5 {
		p.Workers = append(p.Workers, failure.PreemptedWorker{Rank: i})
		a.Workers = append(a.Workers, Worker{Rank: i, Dir: fmt.Sprint("/logs/attempt_0/", i)})
		a.Silent = append(a.Silent, fmt.Sprint("h", i))
		a.Failures = append(a.Failures, &failure.ProcessFailure{Cause: "c", Observation: failure.Observation{Rank: i}})
	}
	writeEnds(&b, p)
	a.write(&b, map[string]string{})
	for _, want := range []string{
		"    rank 31 (local_rank 0, pid 0): exit status 0, by itself\n    and 5 more\n",
		"    and 4 more\n", "    h31\n    and 5 more\n", "left out of the report: 3 workers of other hosts\n", "and of 5 more workers\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	for _, hidden := range []string{"h32", "32/  rank 32", "rank 36 "} {
		if strings.Contains(b.String(), hidden) {
			t.Errorf("%q in\n%s", hidden, b.String())
		}
	}
}

// What cannot be read is a problem of the attempt, at most a few, each in one line.
func TestProblems(t *testing.T) {
	var a Attempt
	for i := range 50 {
		a.problem("line %d\nnext\x1b[31m", i)
	}
	if len(a.Problems) != 20 || a.Problems[19] != "line 19 next" {
		t.Errorf("%d problems: %q", len(a.Problems), a.Problems)
	}
}

// A run whose files are too large together is read as far as the budget goes.
func TestBudget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stderr.log")
	if err := os.WriteFile(path, bytes.Repeat([]byte("line\n"), 20_000), 0o600); err != nil {
		t.Fatal(err)
	}
	rd := &reader{budget: tailBytes + 10}
	if text, at, err := rd.end(path); err != nil || len(text) != tailBytes || at.IsZero() {
		t.Errorf("within it: %d bytes of %v, %v", len(text), at, err)
	}
	if _, _, err := rd.end(path); err != errBudget {
		t.Errorf("beyond it: %v", err)
	}
	rd = &reader{budget: maxTotal}
	if _, err := rd.file(path, 99_999); err == nil || err.Error() != "has 100000 bytes, more than the 99999 that are read" {
		t.Errorf("a large file: %v", err)
	}
	rd.budget = 99_999
	if _, err := rd.file(path, 100_000); err != errBudget {
		t.Errorf("a file beyond it: %v", err)
	}
	if _, err := rd.file(filepath.Dir(path), 1000); err == nil {
		t.Error("a directory is read")
	}
}

// A file that cannot be followed is named once, and the others are followed.
func TestComplain(t *testing.T) {
	dir := t.TempDir()
	for _, rank := range []string{"0", "1"} {
		if err := os.MkdirAll(filepath.Join(dir, "attempt_0", rank), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	good, bad := filepath.Join(dir, "attempt_0/1/stdout.log"), filepath.Join(dir, "attempt_0/0/stdout.log")
	if err := os.WriteFile(good, []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	cfg := FollowConfig{Dir: dir, Selection: Selection{Stdout: true}, Lines: -1, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Printing: Printing{Writer: &out, Prefix: func(ranks string, _ bool) string { return ranks + ":" }}}
	f := &follower{cfg: cfg, print: newPrinter(cfg.Printing, true), failed: map[string]bool{}}
	f.enter(number{})
	for range 3 { // it took a file's place after that was seen
		f.complain(bad, unix.ELOOP)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "file="+bad) {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	if err := f.leave(); err != nil {
		t.Fatal(err)
	}
	if err := f.print.Close(); err != nil || out.String() != "0:b\n1:a\n" {
		t.Errorf("it writes %q, %v", out.String(), err)
	}
}

// How a job ended is told from its directory, once its agent has ended; one that does not end is not waited for for ever.
func TestEnding(t *testing.T) {
	dir := t.TempDir()
	if got := Ending(t.Context(), dir); got != "" {
		t.Errorf("without a word of the agent: %q", got)
	}
	w, err := jobfile.Create(dir, jobfile.Begin{RunID: "job", PID: 42})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const want = "the agent sends no more lines, and has not ended"
		if got := Ending(t.Context(), dir); got != want || time.Since(began) < endTime {
			t.Errorf("while the agent runs, after %v: %q", time.Since(began), got)
		}
	})
	if err := w.End(jobfile.End{Outcome: jobfile.Failed, Cause: "rank 1: exit code 3"}, false); err != nil {
		t.Fatal(err)
	}
	if got, want := Ending(t.Context(), dir), "the job has failed: rank 1: exit code 3"; got != want {
		t.Errorf("after its end: %q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, jobfile.Name), []byte("boo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Ending(t.Context(), dir); got != "" {
		t.Errorf("what no agent writes: %q", got)
	}
}

// An outcome that only a later release knows is not known.
func TestOutcome(t *testing.T) {
	for _, tt := range []struct {
		state   jobfile.State
		outcome string
		want    Outcome
	}{
		{jobfile.Runs, "", Running}, {jobfile.Gone, "", Killed}, {jobfile.Ended, jobfile.Left, Left},
		{jobfile.Ended, "suspended", Unknown}, {jobfile.Ended, "running", Unknown}, {jobfile.Unknown, "", Unknown},
	} {
		f := &jobfile.File{State: tt.state, End: jobfile.End{Outcome: tt.outcome}}
		if got := outcome(f); got != tt.want {
			t.Errorf("%v, %q: got %s, want %s", tt.state, tt.outcome, got, tt.want)
		}
	}
}
