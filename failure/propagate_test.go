package failure_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "error.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The agent's copy is torchrun's, byte for byte.
// Source: golden/fail-record.
func TestWriteErrorFileGolden(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "agent.json")
	sample := func(name string) string {
		return strings.ReplaceAll(read(t, "testdata/torchrun-2.15/"+name), "<UNIX_SECS>", "1795233104")
	}
	root := failure.New(failure.Observation{ExitCode: 1, Ended: noon, ErrorFile: write(t, sample("worker_error.json"))})
	for range 2 { // the second time over the first
		if err := failure.WriteErrorFile(dst, root); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sample("agent_error.json"), read(t, dst)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(dst))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestWriteErrorFile(t *testing.T) {
	tests := []struct {
		name, content string
		exitCode      int
		stderr        string
		want          string
	}{
		{"string form", `{"timestamp": 1, "message": "boom \u00e9"}`, 3, "", `{"timestamp": 1, "message": "boom \u00e9"}`},
		{"signal", `{"message": {"message": "m", "extraInfo": {"timestamp": "5"}}, "x": [1.50, NaN]}`, -11, "",
			`{"message": {"message": "m", "extraInfo": {"timestamp": "5"}, "errorCode": -11}, "x": [1.50, NaN]}`},
		{"errorCode there already", `{"message": {"errorCode": 0, "message": "m", "extraInfo": {"timestamp": "5"}}}`, 2, "",
			`{"message": {"errorCode": 2, "message": "m", "extraInfo": {"timestamp": "5"}}}`},
		{"no timestamp", `{"message": {"message": "m", "extraInfo": 5}}`, 2, "",
			`{"message": {"message": "m", "extraInfo": {"timestamp": "1795262400"}, "errorCode": 2}}`},
		{"timestamp that int() refuses", `{"message": {"extraInfo": {"a": 1, "timestamp": "1795233104.5"}, "message": "m"}}`, 0, "",
			`{"message": {"extraInfo": {"a": 1, "timestamp": "1795233104"}, "message": "m"}}`},
		{"no file", "", 1, "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nValueError: boom\n",
			`{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nValueError: boom", "timestamp": "1795262400"}, "errorCode": 1}}`},
		{"no file, no traceback", "", -9, "", `{"message": {"message": "killed by SIGKILL", "extraInfo": {"py_callstack": "", "timestamp": "1795262400"}, "errorCode": -9}}`},
		{"broken file", `{"mess`, 1, "", `{"message": {"message": "exit code 1", "extraInfo": {"py_callstack": "", "timestamp": "1795262400"}, "errorCode": 1}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := failure.Observation{ExitCode: tt.exitCode, Started: noon.Add(-time.Minute), Ended: noon, Evidence: failure.Evidence{StderrTail: []byte(tt.stderr)}}
			if tt.content != "" {
				o.ErrorFile = write(t, tt.content)
			}
			dst := filepath.Join(t.TempDir(), "agent.json")
			root := failure.New(o)
			data := string(root.ErrorFileData())
			if err := failure.WriteErrorFile(dst, root); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, read(t, dst)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if again := string(root.ErrorFileData()); again != data {
				t.Errorf("WriteErrorFile changed the failure: %s, was %s", again, data)
			}
		})
	}
}

// What is not a file stays what it is.
func TestWriteErrorFileSpecial(t *testing.T) {
	root := failure.New(failure.Observation{ExitCode: 1, Ended: noon})
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for dst, want := range map[string]string{
		"":                            "",
		"/dev/null":                   "",
		"/dev//null":                  "",
		dir:                           "a directory already",
		fifo:                          "a named pipe already",
		filepath.Join(dir, "no/such"): "no such file or directory",
	} {
		err := failure.WriteErrorFile(dst, root)
		if got := errString(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
			t.Errorf("write to %q: %v, want %q", dst, err, want)
		}
	}
	if info, err := os.Lstat("/dev/null"); err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Fatalf("/dev/null is %v, %v", info, err)
	}
	// A link is replaced, what it points to is not.
	target, link := write(t, "precious"), filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := failure.WriteErrorFile(link, errors.New("join run \"x\": timed out")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, target); got != "precious" {
		t.Errorf("the link's target has become %s", got)
	}
	file := failure.ReadErrorFile(link)
	if file == nil || file.Note != "" || file.Message != `join run "x": timed out` || !file.Object {
		t.Errorf("got %+v", file)
	}
	// Whoever started the agent may be another user.
	if info, err := os.Stat(link); err != nil || info.Mode().Perm()&0o444 == 0o400 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
