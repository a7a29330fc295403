package autopsy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/test/testproc"
)

// A worker's flight recorder is told to write its file by its pipe.
// Source: DumpPipe in ProcessGroupNCCL.hpp.
func TestFlightPipe(t *testing.T) {
	lab := testproc.New(t)
	dir := t.TempDir()
	pid, stop := hang(t, lab, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE="+dir+"/pipe_", "TORCH_FR_DUMP_TEMP_FILE="+dir+"/trace_")
	defer stop()
	pipe, trace := filepath.Join(dir, "pipe_0.pipe"), filepath.Join(dir, "trace_0")
	cfg := autopsy.Config{Timeout: 4 * time.Second}
	look := func() autopsy.Flight {
		t.Helper()
		w := take(t, cfg, autopsy.Target{PID: pid}).Workers[0]
		if len(w.Flight) != 1 || w.Flight[0].Source != "pipe" {
			t.Fatalf("flight recorder: %+v", w.Flight)
		}
		return w.Flight[0]
	}
	expect := func(f autopsy.Flight, want string) {
		t.Helper()
		if f.Bytes != 0 || !strings.Contains(f.Problem, want) {
			t.Errorf("%+v, want %q", f, want)
		}
	}

	expect(look(), "does not exist; it is made by the NCCL backend")
	if err := os.WriteFile(pipe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(look(), "is not a named pipe")
	if text, err := os.ReadFile(pipe); err != nil || len(text) > 0 {
		t.Errorf("a plain file in the pipe's place got %q, %v", text, err)
	}
	if err := os.Remove(pipe); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(look(), "does not listen to it")

	// The worker's end of the pipe. An old file is not taken for its answer.
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.WriteFile(trace, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(look(), "did not change after the pipe was written to")
	buf := make([]byte, 16)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "1\n" {
		t.Errorf("the pipe got %q, %v", buf[:n], err)
	}

	answered := make(chan error, 1)
	go func() {
		if _, err := r.Read(buf); err != nil {
			answered <- err
			return
		}
		answered <- os.WriteFile(trace, []byte("what happened"), 0o600)
	}()
	report := take(t, cfg, autopsy.Target{PID: pid})
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if f := report.Workers[0].Flight[0]; f.Problem != "" || f.Bytes != len("what happened") || f.Worker != trace {
		t.Fatalf("flight recorder: %+v", f)
	}
	out := t.TempDir()
	_, jsonPath, err := report.WriteDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "autopsy-rank0-nccl.pickle")); string(got) != "what happened" {
		t.Errorf("file of the flight recorder: %q, %v", got, err)
	}
	if got, err := os.ReadFile(jsonPath); err != nil || !strings.Contains(string(got), `"file": "autopsy-rank0-nccl.pickle"`) {
		t.Errorf("JSON: %v\n%s", err, got)
	}
}

// The worker says which file its flight recorder writes; a link to somebody else's
// file is not followed.
func TestFlightLink(t *testing.T) {
	lab := testproc.New(t)
	dir := t.TempDir()
	pid, stop := hang(t, lab, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE="+dir+"/", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE="+dir+"/")
	defer stop()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "0.pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	linked := make(chan error, 1)
	go func() {
		if _, err := r.Read(make([]byte, 16)); err != nil {
			linked <- err
			return
		}
		linked <- os.Symlink(secret, filepath.Join(dir, "0"))
	}()
	f := take(t, autopsy.Config{}, autopsy.Target{PID: pid}).Workers[0].Flight[0]
	if err := <-linked; err != nil {
		t.Fatal(err)
	}
	if f.Bytes != 0 || !strings.Contains(f.Problem, "symbolic links") {
		t.Errorf("flight recorder: %+v", f)
	}
}

// Reports of one directory do not replace each other.
func TestWriteDir(t *testing.T) {
	r := autopsy.Report{Reason: "timer epoch expired", Workers: []autopsy.Worker{reduce(50), reduce(50), python(mainThread("/srv/a.py:1 think"))}}
	for i := range r.Workers {
		r.Workers[i].Rank = i
	}
	dir := filepath.Join(t.TempDir(), "attempt_0")
	var names []string
	for range 3 {
		text, jsonPath, err := r.WriteDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(text), filepath.Base(jsonPath))
	}
	if got, want := strings.Join(names, " "), "autopsy.txt autopsy.json autopsy-2.txt autopsy-2.json autopsy-3.txt autopsy-3.json"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	body, err := os.ReadFile(filepath.Join(dir, "autopsy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Reason, Summary string
		Groups          []autopsy.Group
		Workers         []autopsy.Worker
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Reason != r.Reason || got.Summary != r.Summary() || len(got.Groups) != 2 || len(got.Workers) != 3 {
		t.Errorf("JSON: %+v", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "autopsy.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Autopsy: timer epoch expired\n", r.Summary() + "\n", "\nrank 2 in think (a.py:1)  << differs\n    think (/srv/a.py:1)\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("text has no %q:\n%s", want, text)
		}
	}
	for name, want := range map[string]os.FileMode{"": os.ModeDir | 0o700, "autopsy.txt": 0o600, "autopsy-2.json": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, want)
		}
	}
	// No link that somebody else has put there is followed.
	victim := filepath.Join(t.TempDir(), "victim")
	must(t, os.Symlink(victim, filepath.Join(dir, "autopsy-4.json")))
	if _, jsonPath, err := r.WriteDir(dir); err != nil || filepath.Base(jsonPath) != "autopsy-5.json" {
		t.Errorf("beside a link: %s, %v", jsonPath, err)
	}
	if _, err := os.Stat(victim); err == nil {
		t.Error("a link was followed")
	}
	blocked := filepath.Join(dir, "autopsy.txt", "below")
	if _, _, err := r.WriteDir(blocked); err == nil {
		t.Error("wrote below a file")
	}
}
