package failure_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-run/muster/failure"
)

// Source: ProcessFailure._get_error_data, and agent.md's table of what is accepted.
func TestReadErrorFile(t *testing.T) {
	at := time.Unix(1795233104, 0)
	tests := []struct {
		name, content string
		want          failure.ErrorFile // without Path, Size, ModTime
	}{
		{"object", `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n", "timestamp": "1795233104"}}}`,
			failure.ErrorFile{Message: "ValueError: boom", Callstack: "Traceback\n", Timestamp: at, Object: true}},
		{"object, number as time", `{"message": {"message": "m", "extraInfo": {"timestamp": 1795233104}}}`,
			failure.ErrorFile{Message: "m", Timestamp: at, Object: true}},
		{"object, float as time", `{"message": {"message": "m", "extraInfo": {"timestamp": 1795233104.75}}}`,
			failure.ErrorFile{Message: "m", Timestamp: at, Object: true}},
		{"object, no time", `{"message": {"message": "m", "extraInfo": {"py_callstack": "T"}}}`,
			failure.ErrorFile{Message: "m", Callstack: "T", Object: true, Note: "has no timestamp"}},
		{"object, no extraInfo", `{"message": {"message": "m"}}`,
			failure.ErrorFile{Message: "m", Object: true, Note: "has no timestamp"}},
		{"object, extraInfo a list", `{"message": {"message": "m", "extraInfo": [1]}}`,
			failure.ErrorFile{Message: "m", Object: true, Note: "has no timestamp"}},
		{"object, silly time", `{"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}}`,
			failure.ErrorFile{Message: "m", Object: true, Note: `has an unusable timestamp "soon"`}},
		{"object, endless time", `{"message": {"message": "m", "extraInfo": {"timestamp": 1e999}}}`,
			failure.ErrorFile{Message: "m", Object: true, Note: `has an unusable timestamp 1e999`}},
		{"object, message a list", `{"message": {"message": ["a", 1], "extraInfo": {"timestamp": "1795233104"}}}`,
			failure.ErrorFile{Message: `["a", 1]`, Timestamp: at, Object: true}},
		{"empty object", `{"message": {}}`,
			failure.ErrorFile{Object: true, Note: "has neither a message nor a traceback"}},
		{"string", `{"message": "boom", "timestamp": "1795233104"}`,
			failure.ErrorFile{Message: "boom", Timestamp: at}},
		{"string, number as time", `{"message": "boom", "timestamp": 1795233104}`,
			failure.ErrorFile{Message: "boom", Timestamp: at}},
		{"string, no time", `{"message": "boom"}`,
			failure.ErrorFile{Message: "boom"}},
		{"empty string", `{"message": ""}`, failure.ErrorFile{}},
		{"empty file", "", failure.ErrorFile{Note: "is empty"}},
		{"blank file", " \n", failure.ErrorFile{Note: "is empty"}},
		{"truncated in a key (D8)", `{"mess`, failure.ErrorFile{Note: "is cut off after 6 bytes"}},
		{"truncated in the traceback", `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Trace`,
			failure.ErrorFile{Message: "ValueError: boom", Note: "is cut off after 80 bytes"}},
		{"list", `["message"]`, failure.ErrorFile{Note: "holds a list instead of an object"}},
		{"null", `null`, failure.ErrorFile{Note: "holds a null instead of an object"}},
		{"foreign", `{"error": "x"}`, failure.ErrorFile{Note: `has no "message"; it was not written by torch's @record`}},
		{"message a number", `{"message": 7}`,
			failure.ErrorFile{Message: "7", Note: `has a number as "message" instead of an object or a string`}},
		{"not JSON", `boom`, failure.ErrorFile{Note: `is not JSON: invalid character 'b' looking for beginning of value`}},
		{"two documents", `{"message": "a"}{"message": "b"}`,
			failure.ErrorFile{Message: "a", Note: "is not JSON: invalid character '{' after top-level value"}},
		{"not UTF-8", "{\"message\": \"caf\xe9\"}",
			failure.ErrorFile{Message: "caf\ufffd", Note: "is not UTF-8; the bytes that are not show as \ufffd"}},
		{"UTF-16", "\xff\xfe{\x00", failure.ErrorFile{Note: `is not JSON: invalid character 'ÿ' looking for beginning of value`}},
		{"deep", `{"message": ` + strings.Repeat("[", 100_000), failure.ErrorFile{Note: `is not JSON: invalid character '[' exceeded max depth`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "error.json")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got := failure.ReadErrorFile(path)
			if got == nil {
				t.Fatal("no file")
			}
			if diff := cmp.Diff(tt.want, *got, cmpopts.IgnoreUnexported(failure.ErrorFile{}),
				cmpopts.IgnoreFields(failure.ErrorFile{}, "Path", "Size", "ModTime")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got.Size != int64(len(tt.content)) || got.ModTime.IsZero() {
				t.Errorf("size %d, time %v", got.Size, got.ModTime)
			}
		})
	}
}

func TestReadErrorFileHuge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	content := `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "` + strings.Repeat("x", failure.MaxErrorFile) + `", "timestamp": "1"}}}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	got := failure.ReadErrorFile(path)
	if got == nil {
		t.Fatal("no file")
	}
	if want := fmt.Sprintf("has %d bytes, of which the first %d were read", len(content), failure.MaxErrorFile); got.Note != want {
		t.Errorf("note %q, want %q", got.Note, want)
	}
	if got.Message != "ValueError: boom" {
		t.Errorf("salvaged message %q", got.Message)
	}
	// A sparse file of a terabyte is no more work.
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skip(err)
	}
	if got = failure.ReadErrorFile(path); got == nil || got.Message != "ValueError: boom" {
		t.Errorf("terabyte: %v", got)
	}
}

// Whatever is at the path, reading ends.
func TestReadErrorFileSpecial(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(at("plain"), []byte(`{"message": "m"}`), 0o600))
	check(os.Mkdir(at("dir"), 0o700))
	check(os.Symlink(at("plain"), at("link")))
	check(os.Symlink(at("loop"), at("loop")))
	check(syscall.Mkfifo(at("fifo"), 0o600))
	tests := []struct{ path, note string }{
		{at("dir"), "is a directory, not a regular file; left alone"},
		{at("link"), "is a symbolic link, not a regular file; left alone"},
		{at("loop"), "is a symbolic link, not a regular file; left alone"},
		{at("fifo"), "is a named pipe, not a regular file; left alone"},
		{"/dev/zero", "is a device, not a regular file; left alone"},
		{"", ""},
		{at("missing"), ""},
		{at("plain/x"), ""},
	}
	for _, tt := range tests {
		file := failure.ReadErrorFile(tt.path)
		switch {
		case tt.note == "" && file != nil:
			t.Errorf("%s: got %+v, want none", tt.path, file)
		case tt.note != "" && (file == nil || file.Note != tt.note):
			t.Errorf("%s: got %+v, want note %q", tt.path, file, tt.note)
		}
	}
}

func FuzzErrorFile(f *testing.F) {
	worker, err := os.ReadFile("testdata/torchrun-2.15/worker_error.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(worker)
	for _, s := range []string{"", "[]", `{"message": ""}`, `{"message": "x", "timestamp": -1}`, `{"message": {"extraInfo": {"py_callstack": 1}}}`,
		`{"message": {"message": "a\ud800", "extraInfo": {"timestamp": "9999999999999999999"}}}`} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, fmt.Sprintf("%d.json", os.Getpid()))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		pf := failure.New(failure.Observation{ExitCode: 1, Ended: time.Now(), ErrorFile: path, PID: 7})
		checkFailure(t, pf)
		dst := path + ".copy"
		if err := failure.WriteErrorFile(dst, pf); err != nil {
			t.Fatal(err)
		}
		if copied := failure.ReadErrorFile(dst); copied == nil || copied.Note != "" {
			t.Fatalf("%q is propagated as %+v", data, copied)
		}
	})
}
