package failure_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/test/pypeer"
)

// What the real @record writes is read whole and printed as the real
// ChildFailedError prints it, and what WriteErrorFile makes of it is what the real
// dump_error_file makes of it.
func TestAgainstRecord(t *testing.T) {
	python := pypeer.Python(t)
	dir := t.TempDir()
	scripts := []struct{ name, raise, want string }{
		{"plain", `raise ValueError("boom\nsecond line é")`, "ValueError: boom"},
		{"surrogates", `open(b"/no/such/\xff")`, "FileNotFoundError: [Errno 2] No such file or directory: b'/no/such/\\xff'"},
		{"lone surrogate", `raise ValueError("a\udcffb")`, "ValueError: a\ufffdb"},
		{"control characters", `raise ValueError("\x1b[31mred\x1b[0m \x00 \U0001f600")`, "ValueError: red \ufffd \U0001f600"},
		{"chained", "try:\n      1/0\n    except ZeroDivisionError as e:\n      raise RuntimeError('while dividing') from e", "RuntimeError: while dividing"},
		{"group", `raise ExceptionGroup("eg", [ValueError(1)])`, "ExceptionGroup: eg (1 sub-exception)"},
		{"no message", `assert False`, "AssertionError in f (<string>:42)"},
	}
	// One interpreter, since importing torch takes a second: each script raises
	// in its own child.
	var prog strings.Builder
	prog.WriteString(`
import json, os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record, ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler
os.chdir(sys.argv[1])
out = {}
def run(name, f):
    os.environ["TORCHELASTIC_ERROR_FILE"] = name + ".json"
    pid = os.fork()
    if pid == 0:
        sys.stderr = open(os.devnull, "w")
        try: record(f)()
        except BaseException: os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)
    os.environ["TORCHELASTIC_ERROR_FILE"] = name + ".parent.json"
    ErrorHandler().dump_error_file(name + ".json", 1)
    pf = ProcessFailure(local_rank=1, pid=7, exitcode=1, error_file=name + ".json")
    out[name] = str(ChildFailedError("t.py", {3: pf})).encode("utf-8", "replace").decode("utf-8")
`)
	for i, s := range scripts {
		fmt.Fprintf(&prog, "def f():\n    %s\nrun('%d', f)\n", s.raise, i)
	}
	prog.WriteString("json.dump(out, sys.stdout)\n")
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(python, "-c", prog.String(), dir)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "TZ=UTC")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	var theirs map[string]string
	if err := json.Unmarshal(stdout.Bytes(), &theirs); err != nil {
		t.Fatal(err)
	}
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	for i, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			name := fmt.Sprint(i)
			path := filepath.Join(dir, name+".json")
			f := failure.New(failure.Observation{LocalRank: 1, Rank: 3, PID: 7, ExitCode: 1, Ended: time.Now(), ErrorFile: path})
			if f.Cause != s.want || f.TracebackFrom != "error file" || f.Note != "" {
				t.Errorf("cause %q from %q, note %q, want %q", f.Cause, f.TracebackFrom, f.Note, s.want)
			}
			// In nanoseconds, and no later than now.
			if f.FailedAt.Nanosecond() == 0 || f.FailedAt.After(f.Ended) || !f.FailedAt.Equal(failure.ReadErrorFile(path).ModTime) {
				t.Errorf("failed at %v, file of %v", f.FailedAt, failure.ReadErrorFile(path).ModTime)
			}
			dst := filepath.Join(dir, name+".ours.json")
			if err := failure.WriteErrorFile(dst, f); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(read(t, filepath.Join(dir, name+".parent.json")), read(t, dst)); diff != "" {
				t.Errorf("propagated, -torch +muster:\n%s", diff)
			}
			got := block(t, failure.NewReport(failure.ReportConfig{Title: "t.py"}, []*failure.ProcessFailure{f}))
			_, got, _ = strings.Cut(got, "ChildFailedError: ")
			var kept []string
			for l := range strings.Lines(got) {
				if !strings.HasPrefix(l, "  cause     : ") {
					kept = append(kept, l)
				}
			}
			want := theirs[name]
			at, rest, _ := strings.Cut(want, "  host      : ")
			_, rest, _ = strings.Cut(rest, "\n")
			want = strings.ReplaceAll(at+"  host      : \n"+rest, name+".json", path) + "\n"
			if s.name == "lone surrogate" || s.name == "control characters" || s.name == "surrogates" {
				return // theirs lets these through to the terminal
			}
			// Their width counts host and path, which differ here.
			width := func(s string) string {
				return strings.NewReplacer("=", "", "-\n", "\n", "--", "", "---", "").Replace(s)
			}
			// Theirs is when it was about to write the file, ours when that was there.
			second := regexp.MustCompile(`(?m)^  time      : (.*)$`)
			ours := strings.Join(kept, "")
			at1, err1 := time.Parse("2006-01-02_15:04:05", second.FindStringSubmatch(want)[1])
			at2, err2 := time.Parse("2006-01-02_15:04:05", second.FindStringSubmatch(ours)[1])
			if apart := at2.Sub(at1); err1 != nil || err2 != nil || apart < 0 || apart > time.Minute {
				t.Errorf("times %v, %v are %v apart; %v, %v", at1, at2, apart, err1, err2)
			}
			want, ours = second.ReplaceAllString(want, ""), second.ReplaceAllString(ours, "")
			if diff := cmp.Diff(width(want), width(ours)); diff != "" {
				t.Errorf("-torch +muster:\n%s", diff)
			}
		})
	}
}

// What we write, torch reads: as an agent above us would, and for the workers
// that are Go functions.
func TestTorchReadsOurs(t *testing.T) {
	python := pypeer.Python(t)
	dir := t.TempDir()
	var paths []string
	propagate := func(content, stderr string, exitCode int) {
		o := failure.Observation{Rank: 1, PID: 7, ExitCode: exitCode, Ended: time.Now(), Evidence: failure.Evidence{StderrTail: []byte(stderr)}}
		if content != "" {
			o.ErrorFile = write(t, content)
		}
		path := filepath.Join(dir, fmt.Sprintf("%d.json", len(paths)))
		if err := failure.WriteErrorFile(path, failure.New(o)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	propagate("", simple, 1)
	propagate("", "", -9)
	propagate(`{"mess`, "", 1)
	propagate(`[1]`, "", 1)
	propagate(`{"message": {"message": "m"}}`, "", 1)
	propagate(`{"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}}`, "", 1)
	propagate(`{"message": {"message": "m", "extraInfo": {"timestamp": "12.5"}}}`, "", 1)
	propagate(`{"message": "m", "timestamp": "12"}`, "", 1)
	propagate(`{"message": "m", "timestamp": "soon"}`, "", 1)
	propagate("{\"message\": \"caf\xe9\"}", "", 1)
	path := filepath.Join(dir, fmt.Sprintf("%d.json", len(paths)))
	if err := failure.WriteErrorFile(path, errors.New("join: timed out é")); err != nil {
		t.Fatal(err)
	}
	paths = append(paths, path)
	cmd := exec.Command(python, append([]string{"-c", `
import sys
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
for path in sys.argv[1:]:
    pf = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=path)
    str(ChildFailedError("t.py", {0: pf}))
    m = pf.message
    print((m if isinstance(m, str) else m["message"]).encode("ascii", "backslashreplace").decode())
`}, paths...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want := "ValueError: boom\nkilled by SIGKILL\nexit code 1\nexit code 1\nm\nm\nm\nm\nm\ncaf\\ufffd\njoin: timed out \\xe9\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
