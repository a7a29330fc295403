package logs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/logs"
)

// broken is a writer that takes nothing, and cannot be compared.
type broken []string

func (broken) Write([]byte) (int, error) { return 0, errors.New("no more") }

// A console may be any writer. What comes there is complete after Close.
func TestConsoleIsNoFile(t *testing.T) {
	var out, err, log bytes.Buffer
	for _, tt := range []struct {
		name           string
		stdout, stderr io.Writer
		want           map[string]string
	}{
		{"two", &out, &err, map[string]string{"out": "out of 0\n[1]: out of 1\n", "err": "err of 0\n"}},
		{"one", &out, &out, map[string]string{"out": "out of 0\nerr of 0\n[1]: out of 1\n"}},
		{"broken", broken{}, &err, map[string]string{"err": "err of 0\n", "log": "no more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out.Reset()
			err.Reset()
			log.Reset()
			tee, perr := logs.ParseStd("1:1")
			if perr != nil {
				t.Fatal(perr)
			}
			r, nerr := logs.New(logs.Config{
				Dir: t.TempDir(), Stdout: tt.stdout, Stderr: tt.stderr, Tee: tee, LinePrefixTemplate: "[${local_rank}]: ",
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			})
			if nerr != nil {
				t.Fatal(nerr)
			}
			a, aerr := r.Attempt(0, []logs.Worker{{LocalRank: 0}, {LocalRank: 1, Prefix: "[1]: "}})
			if aerr != nil {
				t.Fatal(aerr)
			}
			fmt.Fprintln(a.Sink(0).Stdout, "out of 0")
			fmt.Fprintln(a.Sink(0).Stderr, "err of 0")
			fmt.Fprintln(a.Sink(1).Stdout, "out of 1")
			if err := a.Started(); err != nil {
				t.Error(err)
			}
			finish(t, a)
			if err := r.Close(true); err != nil {
				t.Error(err)
			}
			got := map[string]string{}
			for name, b := range map[string]*bytes.Buffer{"out": &out, "err": &err, "log": &log} {
				if b.Len() > 0 {
					got[name] = b.String()
				}
			}
			if strings.Contains(got["log"], "error=\"no more\"") {
				got["log"] = "no more"
			}
			if out := tt.want["out"]; out != "" && len(got["out"]) == len(out) {
				got["out"] = out // each worker's and stream's way is its own, so they come in any order
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A layout of the caller's own names the files of each worker.
func TestOwnLayout(t *testing.T) {
	spec, err := logs.ParseStd("3")
	if err != nil {
		t.Fatal(err)
	}
	errorFiles := t.TempDir()
	j := newJob(t, logs.Config{Redirects: spec, Layout: func(dir string, w logs.Worker) logs.Files {
		return logs.Files{
			Stdout: fmt.Sprintf("out/%s-%d", w.Role, w.Rank), Stderr: filepath.Join(dir, fmt.Sprintf("err-%d", w.Rank)),
			ErrorFile: fmt.Sprintf("%s/%d", errorFiles, w.Rank),
		}
	}})
	a, err := j.Attempt(0, []logs.Worker{{LocalRank: 0, Rank: 4, Role: "trainer"}})
	if err != nil {
		t.Fatal(err)
	}
	s := a.Sink(0)
	fmt.Fprint(s.Stdout, "text")
	finish(t, a)
	want := logs.Sink{StdoutPath: a.Dir() + "/out/trainer-4", StderrPath: a.Dir() + "/err-4", ErrorFile: errorFiles + "/4"}
	s.Stdout, s.Stderr = nil, nil
	if s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
	if text, err := os.ReadFile(want.StdoutPath); string(text) != "text" {
		t.Errorf("stdout is %q, %v", text, err)
	}
}

// A file of an attempt is new: a link that somebody has put there is not followed. One
// that a layout names elsewhere may be a link.
func TestLinksInTheWay(t *testing.T) {
	spec, err := logs.ParseStd("3")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	victim := filepath.Join(elsewhere, "victim")
	for name, refused := range map[string]bool{"0/stdout.log": true, "0/stderr.log": true, "filtered_stdout.log": true, "": false} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			j := newJob(t, logs.Config{Redirects: spec, DuplicateStdoutFilters: []string{"x"}, Layout: func(dir string, w logs.Worker) logs.Files {
				files := usual
				link := filepath.Join(dir, name)
				if !refused {
					link = filepath.Join(elsewhere, "link")
					files.Stdout = link
				}
				if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.Symlink(victim, link)); err != nil {
					t.Error(err)
				}
				return files
			}})
			a, err := j.Attempt(0, []logs.Worker{{}})
			if refused != errors.Is(err, fs.ErrExist) {
				t.Errorf("got %v", err)
			}
			if a != nil {
				fmt.Fprint(a.Sink(0).Stdout, "text")
				finish(t, a)
			}
			want := map[bool]string{true: "precious", false: "text"}[refused]
			if text, err := os.ReadFile(victim); string(text) != want {
				t.Errorf("the victim holds %q, %v", text, err)
			}
		})
	}
}

// Another user who can replace the run's directory neither gets what workers write nor
// has another file shown as theirs.
func TestReplacedRunDir(t *testing.T) {
	tee, err := logs.ParseStd("3")
	if err != nil {
		t.Fatal(err)
	}
	private := t.TempDir()
	for _, name := range []string{"stdout.log", "stderr.log"} {
		if err := os.WriteFile(filepath.Join(private, name), []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(dir string) {
		if err := errors.Join(os.Rename(dir, dir+".old"), os.MkdirAll(dir+"/attempt_0", 0o700), os.Symlink(private, dir+"/attempt_0/0")); err != nil {
			t.Error(err)
		}
	}
	for _, when := range []string{"before files are made", "after that"} {
		t.Run(when, func(t *testing.T) {
			j := newJob(t, logs.Config{Tee: tee, Layout: func(dir string, w logs.Worker) logs.Files {
				if when == "before files are made" {
					replace(filepath.Dir(dir))
				}
				return usual
			}})
			a, err := j.Attempt(0, []logs.Worker{{}})
			if err != nil {
				t.Fatal(err)
			}
			if when == "after that" {
				replace(j.Dir())
			}
			fmt.Fprintln(a.Sink(0).Stdout, "out")
			fmt.Fprintln(a.Sink(0).Stderr, "mine")
			if got := string(a.StderrTail(0)); got != "mine\n" {
				t.Errorf("the end of stderr is %q", got)
			}
			if err := a.Started(); err != nil {
				t.Error(err)
			}
			finish(t, a)
			for path, want := range map[string]string{
				j.stdout.Name(): "[0]:out\n", j.stderr.Name(): "[0]:mine\n",
				filepath.Join(private, "stdout.log"): "secret\n", j.Dir() + ".old/attempt_0/0/stdout.log": "out\n",
			} {
				if got := readFile(t, path); got != want {
					t.Errorf("%s holds %q, want %q", path, got, want)
				}
			}
		})
	}
}

// Two streams in one file would each begin it anew.
func TestOwnLayoutTwice(t *testing.T) {
	spec, err := logs.ParseStd("3")
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(t, logs.Config{Redirects: spec, Layout: func(string, logs.Worker) logs.Files { return logs.Files{Stdout: "a", Stderr: "b/../a"} }})
	if _, err := j.Attempt(0, []logs.Worker{{}}); err == nil || !strings.Contains(err.Error(), "/a twice") {
		t.Errorf("got %v", err)
	}
}

func TestLogDirIsAFile(t *testing.T) {
	if _, err := logs.New(logs.Config{Dir: tempFile(t, "plain").Name()}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("got %v, which is not ENOTDIR", err)
	}
}

// usual is where one worker's files are.
var usual = logs.Files{Stdout: "0/stdout.log", Stderr: "0/stderr.log", ErrorFile: "0/error.json"}
