package postmortem_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/failure"
)

// tree makes files, "/" at the end makes a directory, and returns where.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t testing.TB, dir string) *postmortem.Run {
	t.Helper()
	run, err := postmortem.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func text(t testing.TB, run *postmortem.Run) string {
	t.Helper()
	var b strings.Builder
	if err := run.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// recorded makes lines of time.jsonl: the second and what begins, an attempt or an account.
func recorded(marks ...string) string {
	text := `{"version": 1, "workers": 2}` + "\n"
	for _, m := range marks {
		at, what, _ := strings.Cut(m, " ")
		attempt := ""
		if strings.HasPrefix(what, "attempt") {
			attempt, what = what, "start_and_imports"
		}
		text += fmt.Sprintf(`{"at": %s, "account": %q, "attempt": %q}`+"\n", at, what, attempt)
	}
	return text
}

func TestFind(t *testing.T) {
	root := tree(t, map[string]string{
		"a_12345678/attempt_0/": "", "b_12345678/attempt_0/": "", "b_12345678/attempt_1/": "",
		"none/file": "", "attempt": "", "c/attempt_x/": "", "d/attempt_0": "",
	})
	newest, first := time.Now().Add(time.Hour), time.Date(2020, 1, 2, 3, 4, 5, 0, time.Local)
	for name, at := range map[string]time.Time{"a_12345678/attempt_0": newest, "b_12345678/attempt_0": first} {
		if err := os.Chtimes(filepath.Join(root, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	runs, attempt, err := postmortem.Find(root)
	if err != nil || attempt != "" || len(runs) != 2 {
		t.Fatalf("%v, %q, %v", runs, attempt, err)
	}
	if runs[0].RunID != "a" || runs[0].Attempts != 1 || runs[1].RunID != "b" || runs[1].Attempts != 2 {
		t.Errorf("%+v", runs)
	}
	var text strings.Builder
	if err := postmortem.WriteList(&text, postmortem.List(runs)); err != nil || !regexp.MustCompile(`(?m)^2020-01-02 03:04:05  2 attempts  unknown  .*/b_12345678$`).MatchString(text.String()) {
		t.Errorf("WriteList: %v\n%s", err, &text)
	}
	runs, attempt, err = postmortem.Find(filepath.Join(root, "b_12345678/attempt_1/"))
	if err != nil || attempt != "attempt_1" || len(runs) != 1 || runs[0].RunID != "b" {
		t.Errorf("an attempt's directory: %v, %q, %v", runs, attempt, err)
	}
	var none *postmortem.NotFoundError
	if _, _, err := postmortem.Find(filepath.Join(root, "none")); !errors.As(err, &none) {
		t.Errorf("no run: %v", err)
	}
	if _, _, err := postmortem.Find(filepath.Join(root, "attempt")); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file: %v", err)
	}
	for _, name := range []string{"none", "attempt", "attempt/under", "gone"} { // an agent of another user may say any path
		path := filepath.Join(root, "x; run y\nerror: z")
		if err := os.Rename(filepath.Join(root, strings.Split(name, "/")[0]), path); err != nil && name != "gone" {
			t.Fatal(err)
		}
		_, _, err := postmortem.Find(filepath.Join(path, strings.TrimPrefix(name, strings.Split(name, "/")[0])))
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "; run y") {
			t.Errorf("%s: %v", name, err)
		}
		_ = os.Rename(path, filepath.Join(root, strings.Split(name, "/")[0]))
	}
	if _, err := postmortem.Read(filepath.Join(root, "none")); !errors.As(err, &none) {
		t.Errorf("Read of no run: %v", err)
	}
}

func TestIsAttempt(t *testing.T) {
	for name, want := range map[string]bool{
		"attempt_0": true, "attempt_12": true, "attempt_1.2": true,
		"attempt_": false, "attempt_-1": false, "attempt_01": false, "attempt_1.0": false, "attempt_1.": false, "attempt_1.2.3": false, "attempt_+1": false, "x": false,
	} {
		if got := postmortem.IsAttempt(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Restarts, a start anew without one, and the times as time.jsonl tells them.
func TestTimes(t *testing.T) {
	dir := tree(t, map[string]string{
		"attempt_0/0/stdout.log": "", "attempt_0/1/": "", "attempt_0.1/0/": "", "attempt_0.1/1/": "", "attempt_1/0/": "", "attempt_10/0/": "", "attempt_2/0/": "",
		"time.jsonl": recorded("1795268876000 agent", "1795268876010 attempt_0", "1795268876020 running", "1795268876300 rendezvous", "1795268876400 stop",
			"1795268876500 restart", "1795268876550 rendezvous", "1795268876600 attempt_0.1", "1795268877600 waiting_for_hosts",
			"1795268877700 attempt_1", "1795268885700 agent", "1795268886000 agent", "9223372036854775807 attempt_2", "1795268887000 attempt_10") + "{",
	})
	run := read(t, dir)
	type row struct {
		name    string
		ran     time.Duration
		outcome postmortem.Outcome
	}
	var got []row
	for _, a := range run.Attempts {
		r := row{name: a.Name, ran: a.Duration(), outcome: a.Outcome}
		if a.TimesFrom == "files" {
			r.ran = 0
		}
		got = append(got, r)
	}
	want := []row{
		{"attempt_0", 490 * time.Millisecond, "renewed"}, {"attempt_0.1", time.Second, "unknown"}, {"attempt_1", 8 * time.Second, "unknown"},
		{"attempt_2", 0, "unknown"}, {"attempt_10", 0, "unknown"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := text(t, run); !strings.Contains(got, "restarted without a failure") || run.Restarts != 10 {
		t.Errorf("%d restarts:\n%s", run.Restarts, got)
	}
}

// What failure.Report writes is read again.
func TestReport(t *testing.T) {
	at := time.Date(2026, time.March, 4, 12, 0, 0, 5, time.UTC)
	report := failure.NewReport(failure.ReportConfig{Title: "train.py", Host: "n0", RunID: "a/b", Attempt: 1, Restarts: 3, FirstRank: 8, Silent: []string{"n7"}, LeftOut: 2}, []*failure.ProcessFailure{
		failure.New(failure.Observation{LocalRank: 0, Rank: 8, PID: 9, ExitCode: -15, StoppedBy: failure.Signal(unix.SIGTERM), Started: at, Ended: at.Add(3 * time.Second)}),
		failure.New(failure.Observation{LocalRank: 1, Rank: 9, PID: 10, ExitCode: 1, Started: at, Ended: at.Add(2 * time.Second), Evidence: failure.Evidence{StderrTail: []byte("Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nValueError: \x1b[31mboom\n")}}),
	})
	var b strings.Builder
	if err := report.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	dir := tree(t, map[string]string{"attempt_1/report.json": b.String(), "attempt_1/0/stderr.log": "", "attempt_1/1/stderr.log": "", "attempt_1/2/": ""})
	run := read(t, dir)
	a := &run.Attempts[0]
	if run.Title != "train.py" || run.Host != "n0" || run.RunID != "a/b" || run.MaxRestarts != 3 || run.Outcome != postmortem.Failed {
		t.Errorf("%+v", run)
	}
	if a.Cause != "rank 9 (local_rank 1, pid 10) on host n0: ValueError: boom" || len(a.Failures) != 2 || !a.Failures[0].Root || a.Failures[1].Kind != "stopped" {
		t.Errorf("%q, %+v", a.Cause, a.Failures)
	}
	if a.Duration() != 3*time.Second || a.TimesFrom != "report" || !a.Started.Equal(at) || a.LeftOut != 2 || a.Silent[0] != "n7" {
		t.Errorf("%v from %s, %+v", a.Duration(), a.TimesFrom, a)
	}
	for i, w := range a.Workers {
		if w.Rank != 8+i {
			t.Errorf("local rank %d has rank %d", i, w.Rank)
		}
	}
	got := text(t, run)
	for _, want := range []string{
		"train.py: failed, 1 of 3 restarts used\n", "  root cause  rank 9 (local_rank 1, pid 10) on host n0: ValueError: boom\n",
		"  traceback (stderr):\n    Traceback (most recent call last):\n", "    rank 8 (local_rank 0, pid 9) on host n0: stopped with SIGTERM\n",
		"  hosts that did not answer:\n    n7\n", "  left out of the report: 2 workers of other hosts\n", "    2/  rank 10  no files: ", "  ran         3.0 s\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestAutopsies(t *testing.T) {
	dir := tree(t, map[string]string{
		"attempt_0/0/": "", "attempt_0/autopsy.txt": "", "attempt_0/autopsy.json": `{"reason": "heartbeat", "summary": "rank 0 in save\n3 in all_reduce"}`,
		"attempt_0/autopsy-2.json": `{"reason": "deadline\u001b[2J", "summary": "again", "workers": 5}`, "attempt_0/autopsy-3.json": `{`, "attempt_0/autopsy-rank3-flight.json": `{"reason": "no"}`,
	})
	a := read(t, dir).Attempts[0]
	if len(a.Autopsies) != 2 || a.Autopsies[0].Reason != "deadline" || a.Autopsies[1].Summary != "rank 0 in save\n3 in all_reduce" || a.Autopsies[1].File == "" {
		t.Errorf("%+v", a.Autopsies)
	}
	if len(a.Problems) != 1 || !strings.Contains(a.Problems[0], "autopsy-3.json: ") {
		t.Errorf("problems: %q", a.Problems)
	}
}

// What a hang is stands with the root cause alone.
func TestHangOfSeveral(t *testing.T) {
	const cause = "missed a deadline: --hang-timeout: no output for 3s; killed by SIGKILL"
	got := text(t, read(t, tree(t, map[string]string{
		"attempt_0/report.json": `{"version": 1, "cause": "rank 1 (local_rank 1) on host a: ` + cause + `", "failures": [` +
			`{"rank": 1, "local_rank": 1, "host": "a", "cause": "` + cause + `"}, {"rank": 0, "host": "a", "cause": "` + cause + `"}]}`,
		"attempt_0/autopsy.json": `{"reason": "hang: no output for 3s", "summary": "2 ranks in f"}`})))
	for _, want := range []string{"  root cause  rank 1 (local_rank 1) on host a: " + cause + "\n",
		"    rank 0 (local_rank 0) on host a: hung as well; killed by SIGKILL\n", "  what the workers did (hang):\n    2 ranks in f\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "no output for 3s"); n != 1 {
		t.Errorf("it stands %d times in:\n%s", n, got)
	}
}

// As torchrun leaves it: error.json of @record, tracebacks on stderr, nothing else.
func TestTorchrunDirectory(t *testing.T) {
	const recorded = `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"x.py\", line 7, in main\nValueError: boom\n", "timestamp": "%d"}}}`
	now := time.Now().Unix()
	dir := tree(t, map[string]string{
		"attempt_0/0/stdout.log": "fine\n", "attempt_0/0/stderr.log": "just talk\n",
		"attempt_0/1/stderr.log": "Traceback\n", "attempt_0/1/error.json": fmt.Sprintf(recorded, now-5),
		"attempt_1/0/stderr.log": "Traceback (most recent call last):\n  File \"y.py\", line 1, in <module>\nKeyError: 'k'\n",
		"attempt_2/0/stdout.log": "fine\n",
		"attempt_3/0/stderr.log": "terminate called after throwing an instance of 'int'\n",
	})
	run := read(t, dir)
	var causes []string
	for _, a := range run.Attempts {
		causes = append(causes, string(a.Outcome)+" "+a.Cause)
	}
	want := []string{"failed local rank 1: ValueError: boom", "failed local rank 0: KeyError: 'k' in <module> (y.py:1)", "unknown ",
		"failed local rank 0: C++ exception int"}
	if diff := cmp.Diff(want, causes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if f := run.Attempts[0].Failures[0]; f.TracebackFrom != "error file" || f.ErrorFile != filepath.Join(dir, "attempt_0/1/error.json") || f.Rank != -1 {
		t.Errorf("%+v", f)
	}
	if got := text(t, run); !strings.Contains(got, ", going by the times of its files\n") || !strings.HasPrefix(got, "run ") || strings.Contains(got, "\n    \n") {
		t.Error(got)
	}
}

// Whatever lies in the directory, Read and WriteText come back soon, with no
// control characters, and say what was wrong.
func TestHostile(t *testing.T) {
	deep := strings.Repeat("[", 100_000)
	tests := []struct {
		name   string
		files  map[string]string
		change func(dir string) error
		want   string // in the text
	}{
		{"report is not JSON", map[string]string{"attempt_0/report.json": "boo"}, nil, "report.json: invalid character"},
		{"report is deep", map[string]string{"attempt_0/report.json": `{"cause": ` + deep}, nil, "report.json: "},
		{"report of wrong kinds", map[string]string{"attempt_0/report.json": `{"version": 1, "cause": "c", "failures": [{"rank": "x", "cause": "boom"}], "silent": 3, "max_restarts": -5}`}, nil, "cannot unmarshal"},
		{"report is newer", map[string]string{"attempt_0/report.json": `{"version": 99, "cause": "c"}`}, nil, "report.json is of version 99"},
		{"report has a beam of escapes", map[string]string{"attempt_0/report.json": `{"title": "\u001b]0;x\u0007t", "cause": "a\u001b[2J\u202eb\r\n", "failures": [{"cause": "\u0000", "traceback": "x\u001b[31m\n\u009by", "stderr_tail": ["\u001b[2J"], "log": "\n\n"}]}`}, nil, "t: failed"},
		{"report is a fifo", map[string]string{"attempt_0/0/": ""}, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "attempt_0/report.json"), 0o600) }, "report.json: is not a regular file; left alone"},
		{"stderr is a fifo", map[string]string{"attempt_0/0/": ""}, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "attempt_0/0/stderr.log"), 0o600) }, "no failure is recorded"},
		{"error file is a link", map[string]string{"attempt_0/0/": ""}, func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "attempt_0/0/error.json")) }, "is a symbolic link, not a regular file"},
		{"report is a link", map[string]string{"attempt_0/0/": ""}, func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "attempt_0/report.json")) }, "is a symbolic link; left alone"},
		{"report is huge", map[string]string{"attempt_0/report.json": ""}, func(dir string) error { return os.Truncate(filepath.Join(dir, "attempt_0/report.json"), 1<<40) }, "more than the 8388608 that are read"},
		{"stderr is huge", map[string]string{"attempt_0/0/stderr.log": ""}, func(dir string) error { return os.Truncate(filepath.Join(dir, "attempt_0/0/stderr.log"), 1<<40) }, "no failure is recorded"},
		{"attempts are links and files", map[string]string{"attempt_0/0/": "", "attempt_1": ""}, func(dir string) error { return os.Symlink("/", filepath.Join(dir, "attempt_2")) }, "no failure is recorded"},
		{"odd ranks", map[string]string{"attempt_0/99999999999999999999/": "", "attempt_0/-1/": "", "attempt_0/007/": "", "attempt_0/9223372036854775807/": ""}, nil, "9223372036854775807/"},
		{"huge attempt", map[string]string{"attempt_9223372036854775807.9223372036854775807/0/": ""}, nil, "attempt_9223372036854775807.9223372036854775807"},
		{"error file is cut", map[string]string{"attempt_0/0/error.json": `{"message": {"mess`}, nil, "error.json: is cut off"},
		{"error file is empty", map[string]string{"attempt_0/0/error.json": ``}, nil, "error.json: is empty"},
		{"a time of no year", map[string]string{"attempt_0/0/": "", "time.jsonl": recorded("9223372036854775807 attempt_0")}, nil, "no failure"},
		{"times are a directory", map[string]string{"attempt_0/0/": "", "time.jsonl/": ""}, nil, "no failure"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := tree(t, tt.files)
			if tt.change != nil {
				if err := tt.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			run := read(t, dir)
			got := text(t, run)
			if !strings.Contains(got, tt.want) {
				t.Errorf("no %q in:\n%s", tt.want, got)
			}
			checkHarmless(t, got)
		})
	}
}

// So is the directory's own name.
func TestHostileName(t *testing.T) {
	dir := filepath.Join(tree(t, map[string]string{"job\x1b[2J\n_12345678/attempt_0/0/stdout.log": ""}), "job\x1b[2J\n_12345678")
	checkHarmless(t, text(t, read(t, dir)))
}

func checkHarmless(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\u202e' {
			t.Fatalf("%q in %q", r, text)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version": 1, "cause": "c", "failures": [{"rank": 1, "local_rank": 1, "failed_at": "2026-11-21T13:47:56.803353953Z", "traceback": "a\nb"}]}`),
		[]byte(recorded("1795268876000 attempt_0", "1795268877000 agent")), []byte(`{"reason": "r", "summary": "s"}`), []byte(`{"message": "m", "timestamp": "1"}`))
	f.Add([]byte("{"), []byte("\n\n{}\n"), []byte("[]"), []byte("null"))
	f.Add([]byte(`{"failures": [{}, null]}`), []byte(recorded("0 attempt_1", "5 restart")), []byte(`{"time": 3}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, report, times, autopsy, errorFile []byte) {
		dir := t.TempDir()
		for name, body := range map[string][]byte{"attempt_0/report.json": report, "time.jsonl": times, "attempt_0/autopsy.json": autopsy,
			"attempt_0/0/error.json": errorFile, "attempt_1/0/error.json": errorFile, "attempt_1/0/stderr.log": report} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), body, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		run, err := postmortem.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := run.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		checkHarmless(t, b.String())
	})
}
