//go:build linux

package logs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/logs"
)

// A job is a Run with a console of files, which tests read at the end.
type job struct {
	*logs.Run
	t              *testing.T
	stdout, stderr *os.File
}

func newJob(t *testing.T, cfg logs.Config) *job {
	t.Helper()
	j := &job{t: t}
	j.stdout, _ = cfg.Stdout.(*os.File)
	j.stderr, _ = cfg.Stderr.(*os.File)
	if j.stdout == nil {
		j.stdout = tempFile(t, "console.out")
	}
	if j.stderr == nil {
		j.stderr = tempFile(t, "console.err")
	}
	cfg.Stdout, cfg.Stderr = j.stdout, j.stderr
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "logs")
	}
	if cfg.RunID == "" {
		cfg.RunID = "job1"
	}
	var err error
	if j.Run, err = logs.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(true) })
	return j
}

func tempFile(t *testing.T, name string) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func content(t *testing.T, file *os.File) string {
	t.Helper()
	return readFile(t, file.Name())
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ends are what a worker of the test writes to: it keeps the files, as a forked
// process would, after Started has closed the agent's.
type ends struct{ out, err *os.File }

func (e ends) close() { e.out.Close(); e.err.Close() }

// begin starts an attempt with n workers.
func (j *job) begin(n int) (*logs.Attempt, []ends) {
	j.t.Helper()
	workers := make([]logs.Worker, n)
	for i := range workers {
		workers[i] = logs.Worker{LocalRank: i, Rank: 10 + i, Role: "default"}
	}
	a, err := j.Attempt(0, workers)
	if err != nil {
		j.t.Fatal(err)
	}
	list := make([]ends, n)
	for i := range list {
		sink := a.Sink(i)
		list[i] = ends{dup(j.t, sink.Stdout), dup(j.t, sink.Stderr)}
	}
	if err := a.Started(); err != nil {
		j.t.Fatal(err)
	}
	return a, list
}

func dup(t *testing.T, file *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), file.Name())
}

func finish(t *testing.T, a *logs.Attempt) logs.Stats {
	t.Helper()
	stats, err := a.Finish(t.Context())
	if err != nil {
		t.Fatalf("Finish: %v", err)
	}
	return stats
}

func parse(t *testing.T, text string) logs.StdSpec {
	t.Helper()
	spec, err := logs.ParseStd(text)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// Source: the table of spec/process.md §3.
func TestDestinations(t *testing.T) {
	tests := []struct {
		redirect, tee string
		filter        []int
		file          bool
		console       string
	}{
		{"0", "0", nil, false, "out\n"},
		{"0", "0", []int{10}, false, "out\n"}, // global
		{"0", "0", []int{11}, false, ""},
		{"0", "3", []int{11}, true, ""},
		{"0", "3", []int{10}, true, "[default0]:out\n"},
		{"3", "0", nil, true, ""},
		{"0", "3", nil, true, "[default0]:out\n"},
		{"3", "3", nil, true, "[default0]:out\n"},
		{"0", "0", []int{1}, false, ""},
		{"3", "0", []int{1}, true, ""},
		{"0", "3", []int{1}, true, ""},
		{"0", "3", []int{0}, true, "[default0]:out\n"},
		{"0", "3", []int{}, true, "[default0]:out\n"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("r%s t%s %v", tt.redirect, tt.tee, tt.filter), func(t *testing.T) {
			cfg := logs.Config{Redirects: parse(t, tt.redirect), Tee: parse(t, tt.tee), LocalRanksFilter: tt.filter}
			if len(tt.filter) > 0 && tt.filter[0] >= 10 {
				cfg.LocalRanksFilter, cfg.RanksFilter = nil, [][2]int{{5, 5}, {tt.filter[0], tt.filter[0]}}
			}
			j := newJob(t, cfg)
			a, w := j.begin(1)
			if got := a.Output(0); got != (logs.Output{}) {
				t.Errorf("Output = %+v before the first", got)
			}
			began := time.Now()
			fmt.Fprint(w[0].out, "out\n")
			fmt.Fprint(w[0].err, "out\n")
			w[0].close()
			finish(t, a)
			written := int64(len("out\n")) // an unredirected stdout is not seen
			if tt.file {
				written *= 2
			}
			if got := a.Output(0); got.Bytes != written || got.Last.Before(began.Add(-time.Second)) {
				t.Errorf("Output = %+v, want %d bytes after %v", got, written, began)
			}
			for _, console := range []*os.File{j.stdout, j.stderr} {
				if got := content(t, console); got != tt.console {
					t.Errorf("%s holds %q, want %q", filepath.Base(console.Name()), got, tt.console)
				}
			}
			sink := a.Sink(0)
			for _, path := range []string{sink.StdoutPath, sink.StderrPath} {
				switch {
				case !tt.file && path != "":
					t.Errorf("there is a file %s", path)
				case tt.file && readFile(t, path) != "out\n":
					t.Errorf("%s holds %q", path, readFile(t, path))
				}
			}
			if got := string(a.StderrTail(0)); got != "out\n" {
				t.Errorf("StderrTail = %q", got)
			}
		})
	}
}

// Source: golden/logtree.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	j := newJob(t, logs.Config{Dir: dir, Tee: parse(t, "0:3"), Redirects: parse(t, "1:2"), DuplicateStdoutFilters: []string{"x"}})
	a, w := j.begin(2)
	first := a.Sink(0).StdoutPath
	fmt.Fprintln(w[0].out, "of the first attempt")
	w[0].close()
	w[1].close()
	finish(t, a)
	// The same number of restarts again: a change of membership.
	a2, w2 := j.begin(2)
	w2[0].close()
	w2[1].close()
	finish(t, a2)
	var tree []string
	err := filepath.WalkDir(j.Dir(), func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(j.Dir(), path)
		tree = append(tree, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".",
		"attempt_0", "attempt_0/0", "attempt_0/0/stderr.log", "attempt_0/0/stdout.log",
		"attempt_0/1", "attempt_0/1/stderr.log", "attempt_0/filtered_stdout.log",
		"attempt_0.1", "attempt_0.1/0", "attempt_0.1/0/stderr.log", "attempt_0.1/0/stdout.log",
		"attempt_0.1/1", "attempt_0.1/1/stderr.log", "attempt_0.1/filtered_stdout.log"}
	slices.Sort(want)
	slices.Sort(tree)
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Errorf("log directory (-want +got):\n%s", diff)
	}
	if got := readFile(t, first); got != "of the first attempt\n" {
		t.Errorf("the first attempt's log holds %q now", got)
	}
	if name := filepath.Base(j.Dir()); len(name) != len("job1_")+8 || !strings.HasPrefix(name, "job1_") {
		t.Errorf("run directory is called %s", name)
	}
	if got, want := a.Sink(1).ErrorFile, filepath.Join(a.Dir(), "1", "error.json"); got != want {
		t.Errorf("error file is %s, want %s", got, want)
	}
}

func TestRelativeDirIsMadeAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	j := newJob(t, logs.Config{Dir: "logs"})
	a, w := j.begin(1)
	w[0].close()
	finish(t, a)
	if !filepath.IsAbs(a.Sink(0).ErrorFile) {
		t.Errorf("error file %s is relative", a.Sink(0).ErrorFile)
	}
}

func TestTemporaryDir(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, tt := range []struct {
		name       string
		tee        string
		keep, gone bool
	}{
		{"nothing kept", "0", false, true},
		{"failed", "0", true, false},
		{"holds logs", "3", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := logs.New(logs.Config{RunID: "a/b", Tee: parse(t, tt.tee), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			root := filepath.Dir(r.Dir())
			if !strings.HasPrefix(filepath.Base(root), "torchelastic_") || !strings.HasPrefix(filepath.Base(r.Dir()), "a_b_") {
				t.Errorf("run directory is %s", r.Dir())
			}
			info, err := os.Stat(root)
			if err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v", root, info, err)
			}
			a, err := r.Attempt(0, []logs.Worker{{}})
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Started(); err != nil {
				t.Fatal(err)
			}
			finish(t, a)
			if err := r.Close(tt.keep); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) != tt.gone {
				t.Errorf("after Close: %v, want gone: %v", err, tt.gone)
			}
		})
	}
}

// A TMPDIR that this host does not have costs a line, not the job.
func TestTemporaryDirIsGone(t *testing.T) {
	named := filepath.Join(t.TempDir(), "gone")
	t.Setenv("TMPDIR", named)
	t.Setenv("TMP", t.TempDir())
	var said bytes.Buffer
	r, err := logs.New(logs.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(false)
	if got := filepath.Dir(filepath.Dir(r.Dir())); got != os.Getenv("TMP") {
		t.Errorf("log files go below %s, want %s", got, os.Getenv("TMP"))
	}
	if want := "tmpdir=" + named + " instead=" + os.Getenv("TMP"); !strings.Contains(said.String(), want) {
		t.Errorf("logged %q, want %q in it", said.String(), want)
	}
}

func TestDevNull(t *testing.T) {
	j := newJob(t, logs.Config{Dir: os.DevNull, Tee: parse(t, "3"), Redirects: parse(t, "3"), LocalRanksFilter: []int{1}})
	a, w := j.begin(2)
	for i := range w {
		fmt.Fprintf(w[i].out, "out %d\n", i)
		fmt.Fprintf(w[i].err, "err %d\n", i)
		w[i].close()
	}
	finish(t, a)
	if got := content(t, j.stdout); got != "out 1\n" {
		t.Errorf("console stdout %q", got)
	}
	if got := content(t, j.stderr); got != "err 1\n" {
		t.Errorf("console stderr %q", got)
	}
	if sink := a.Sink(0); sink.ErrorFile != "" || sink.StdoutPath != "" || j.Dir() != "" || a.Dir() != "" {
		t.Errorf("there are files: %+v, %q, %q", sink, j.Dir(), a.Dir())
	}
	if got := string(a.StderrTail(0)); got != "err 0\n" {
		t.Errorf("StderrTail = %q", got)
	}
}

func TestNewRefuses(t *testing.T) {
	file := tempFile(t, "plain").Name()
	for _, tt := range []struct {
		cfg  logs.Config
		want string
	}{
		{logs.Config{Dir: os.DevNull, DuplicateStdoutFilters: []string{"x"}}, "logs.Config.DuplicateStdoutFilters"},
		{logs.Config{Dir: os.DevNull, Stdout: (*os.File)(nil)}, "is a nil *os.File"},
		{logs.Config{Dir: file}, "is a file"},
		{logs.Config{Dir: filepath.Join(file, "below")}, "not a directory"},
		{logs.Config{Dir: "/proc/no/such"}, "/proc/no"},
	} {
		if _, err := logs.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want an error with %q", tt.cfg, err, tt.want)
		}
	}
}

// What golden/tee writes, and what becomes of it. The bytes stay as they are;
// a line appears whole; the last one gets the newline that it lacks. (P1, P2)
func TestTeeLines(t *testing.T) {
	j := newJob(t, logs.Config{Tee: parse(t, "3")})
	a, w := j.begin(1)
	for _, part := range []string{"first\n", "part", "ial\n", "bad\xff\xfeutf8\rcr\x0bvt\x0cff\u2028ls\n", "crlf\r\n\r\nend no newline"} {
		fmt.Fprint(w[0].out, part)
	}
	w[0].close()
	finish(t, a)
	want := "[default0]:first\n[default0]:partial\n[default0]:bad\xff\xfeutf8\r[default0]:cr\x0bvt\x0cff\u2028ls\n[default0]:crlf\r\n[default0]:\r\n[default0]:end no newline\n"
	if got := content(t, j.stdout); got != want {
		t.Errorf("console\n%q, want\n%q", got, want)
	}
	if got := readFile(t, a.Sink(0).StdoutPath); !strings.HasSuffix(got, "end no newline") {
		t.Errorf("log file ends in %q", got[max(0, len(got)-20):])
	}
}

// Source: golden/filters.
func TestFilters(t *testing.T) {
	j := newJob(t, logs.Config{
		Tee: parse(t, "0:3,1:1"), Redirects: parse(t, "1:2"), LocalRanksFilter: []int{1},
		DuplicateStdoutFilters: []string{"part", "first,x"}, DuplicateStderrFilters: []string{"apple"},
		LinePrefixTemplate: "[${rank}/${local_rank}/${role_name}/${nope}/$rank/$$] ",
	})
	a, w := j.begin(2)
	for i := range w {
		fmt.Fprintf(w[i].out, "first %d\n", i)
		fmt.Fprintf(w[i].err, "warn apple %d\n", i)
		fmt.Fprint(w[i].out, "par")
		fmt.Fprint(w[i].out, "tial\n")
		w[i].close()
	}
	finish(t, a)
	prefix := "[11/1/default/${nope}/11/$] "
	if got, want := content(t, j.stdout), prefix+"first 1\n"+prefix+"partial\n"; got != want {
		t.Errorf("console\n%q, want\n%q", got, want)
	}
	if got, want := readFile(t, filepath.Join(a.Dir(), "filtered_stdout.log")), prefix+"partial\n"; got != want {
		t.Errorf("filtered_stdout.log %q, want %q", got, want)
	}
	// Redirected only, and filtered all the same. (P7)
	if got, want := readFile(t, filepath.Join(a.Dir(), "filtered_stderr.log")), prefix+"warn apple 1\n"; got != want {
		t.Errorf("filtered_stderr.log %q, want %q", got, want)
	}
}

// Eight workers write at once, in pieces of all sizes. Every line arrives, whole,
// once, in its worker's order.
func TestNoLineIsLostOrTorn(t *testing.T) {
	const workers, lines = 8, 5000
	j := newJob(t, logs.Config{Tee: parse(t, "3")})
	a, w := j.begin(workers)
	line := func(rank, n int) string {
		return fmt.Sprintf("rank %d line %d %s\n", rank, n, strings.Repeat("x", (n*7919+rank)%700))
	}
	var wg sync.WaitGroup
	for i := range w {
		wg.Go(func() {
			defer w[i].close()
			var pending []byte
			for n := range lines {
				pending = append(pending, line(i, n)...)
				for size := (n*31+i)%900 + 1; len(pending) > size; {
					w[i].out.Write(pending[:size])
					pending = pending[size:]
				}
			}
			w[i].out.Write(pending)
		})
	}
	wg.Wait()
	finish(t, a)
	next := make([]int, workers)
	for got := range strings.Lines(content(t, j.stdout)) {
		var rank, n int
		if _, err := fmt.Sscanf(got, "[default%d]:", &rank); err != nil {
			t.Fatalf("line without a prefix: %.80q", got)
		}
		n = next[rank]
		if want := fmt.Sprintf("[default%d]:%s", rank, line(rank, n)); got != want {
			t.Fatalf("worker %d line %d is %.80q, want %.80q", rank, n, got, want)
		}
		next[rank]++
	}
	for rank, n := range next {
		if n != lines {
			t.Errorf("worker %d: %d lines of %d", rank, n, lines)
		}
	}
}

// Lines far longer than any buffer, next to another worker's short ones.
func TestLongLines(t *testing.T) {
	for _, size := range []int{128<<10 - 1, 128 << 10, 128<<10 + 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 10 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			j := newJob(t, logs.Config{Tee: parse(t, "1"), DuplicateStdoutFilters: []string{"needle"}})
			a, w := j.begin(2)
			long := strings.Repeat("0123456789abcdef", size/16+1)[:size]
			var wg sync.WaitGroup
			wg.Go(func() {
				defer w[0].close()
				fmt.Fprintf(w[0].out, "before\n%sneedle%s\nafter\n%s", long[:size/2], long[size/2:], long)
			})
			wg.Go(func() {
				defer w[1].close()
				for n := range 300 {
					fmt.Fprintf(w[1].out, "short %d\n", n)
				}
			})
			wg.Wait()
			finish(t, a)
			var zero, one []string
			for got := range strings.Lines(content(t, j.stdout)) {
				if rest, ok := strings.CutPrefix(got, "[default0]:"); ok {
					zero = append(zero, rest)
				} else {
					one = append(one, got)
				}
			}
			needle := long[:size/2] + "needle" + long[size/2:]
			want := []string{"before\n", needle + "\n", "after\n", long + "\n"}
			if !slices.Equal(zero, want) {
				t.Errorf("worker 0's lines are wrong: %d lines", len(zero))
				for i := range min(len(zero), len(want)) {
					if zero[i] != want[i] {
						t.Errorf("line %d has %d bytes, want %d", i, len(zero[i]), len(want[i]))
					}
				}
			}
			if len(one) != 300 || one[299] != "[default1]:short 299\n" {
				t.Errorf("worker 1: %d lines", len(one))
			}
			if got := readFile(t, filepath.Join(a.Dir(), "filtered_stdout.log")); got != "[default0]:"+needle+"\n" {
				t.Errorf("filtered_stdout.log has %d bytes, want %d", len(got), len(needle)+12)
			}
		})
	}
}

// A console that nobody reads holds up neither the worker nor, once the job is
// being stopped, the agent.
func TestStuckConsole(t *testing.T) {
	r, wEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer wEnd.Close()
	j := newJob(t, logs.Config{Tee: parse(t, "1"), Stdout: wEnd})
	a, w := j.begin(1)
	chunk := bytes.Repeat([]byte("a line of output\n"), 4096)
	for range 64 { // over 4 MiB, far more than a pipe holds
		if _, err := w[0].out.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	w[0].close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the job is being stopped"))
	stats, err := a.Finish(ctx)
	if err == nil || stats.LostBytes == 0 {
		t.Errorf("Finish: %+v, %v, want lost bytes and an error", stats, err)
	}
	if got := len(readFile(t, a.Sink(0).StdoutPath)); got != 64*len(chunk) {
		t.Errorf("the log file has %d bytes, want %d", got, 64*len(chunk))
	}
}

// A console that is read slowly gets everything.
func TestSlowConsole(t *testing.T) {
	r, wEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(t, logs.Config{Tee: parse(t, "1"), Stdout: wEnd})
	a, w := j.begin(2)
	const lines = 20000
	for n := range lines {
		fmt.Fprintf(w[n%2].out, "line %d\n", n/2)
	}
	w[0].close()
	w[1].close()
	read := make(chan int)
	go func() {
		text, _ := io.ReadAll(io.MultiReader(iotest(r), r))
		read <- bytes.Count(text, []byte("\n"))
	}()
	finish(t, a)
	wEnd.Close()
	if err := j.Close(true); err != nil {
		t.Error(err)
	}
	if got := <-read; got != lines {
		t.Errorf("%d lines arrived, want %d", got, lines)
	}
}

// iotest reads the first kilobytes byte by byte.
func iotest(r io.Reader) io.Reader { return io.LimitReader(oneByte{r}, 4096) }

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func TestClosedConsole(t *testing.T) {
	r, wEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer wEnd.Close()
	j := newJob(t, logs.Config{Tee: parse(t, "1"), Stdout: wEnd, DuplicateStdoutFilters: []string{"keep"}})
	a, w := j.begin(1)
	fmt.Fprint(w[0].out, "keep this\nnot this\n")
	w[0].close()
	stats, err := a.Finish(t.Context())
	if !errors.Is(err, syscall.EPIPE) || stats.LostBytes != int64(len("keep this\nnot this\n")) {
		t.Errorf("Finish: %+v, %v, want the bytes lost to EPIPE", stats, err)
	}
	if got := readFile(t, filepath.Join(a.Dir(), "filtered_stdout.log")); got != "[default0]:keep this\n" {
		t.Errorf("filtered_stdout.log holds %q", got)
	}
}

// A worker that empties its own log begins again.
func TestTruncatedFile(t *testing.T) {
	r, wEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j := newJob(t, logs.Config{Tee: parse(t, "1"), Stdout: wEnd})
	a, w := j.begin(1)
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
			t.Fatalf("console: %q, %v, want %q", got, err, want)
		}
	}
	fmt.Fprint(w[0].out, "a rather long first line\n")
	read("[default0]:a rather long first line\n")
	if err := os.Truncate(a.Sink(0).StdoutPath, 0); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w[0].out, "second\n")
	read("[default0]:second\n")
	w[0].close()
	finish(t, a)
}

// tailSize is how much StderrTail returns at most.
const tailSize = 64 << 10

// Stderr that goes nowhere else is carried byte by byte and its end remembered.
func TestRelayKeepsTheEnd(t *testing.T) {
	j := newJob(t, logs.Config{})
	a, w := j.begin(1)
	var all bytes.Buffer
	for n := range 5000 {
		fmt.Fprintf(&all, "line %d of stderr \xff\r", n)
	}
	for text := all.Bytes(); len(text) > 0; {
		n := min(len(text), 777)
		w[0].err.Write(text[:n])
		text = text[n:]
	}
	w[0].close()
	finish(t, a)
	if got := content(t, j.stderr); got != all.String() {
		t.Errorf("the console has %d bytes, want %d", len(got), all.Len())
	}
	want := all.Bytes()[all.Len()-tailSize:]
	if got := a.StderrTail(0); !bytes.Equal(got, want) {
		t.Errorf("StderrTail has %d bytes, want the last %d", len(got), len(want))
	}
}

// A process that a worker left behind may keep its stderr open; Finish does not
// wait for it.
func TestRelayDoesNotWaitForOthers(t *testing.T) {
	j := newJob(t, logs.Config{})
	a, w := j.begin(1)
	defer w[0].close()
	fmt.Fprint(w[0].err, "said before\n")
	finish(t, a)
	if got := content(t, j.stderr); got != "said before\n" {
		t.Errorf("console %q", got)
	}
}

func TestStderrTailOfAFile(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: parse(t, "2")})
	a, w := j.begin(1)
	defer w[0].close()
	text := strings.Repeat("0123456789\n", 10000)
	fmt.Fprint(w[0].err, text)
	if got := string(a.StderrTail(0)); got != text[len(text)-tailSize:] {
		t.Errorf("StderrTail has %d bytes", len(got))
	}
	finish(t, a)
}

// A worker may put anything where its log file was. Nobody waits for what is there.
func TestFIFOInPlaceOfALogFile(t *testing.T) {
	j := newJob(t, logs.Config{Redirects: parse(t, "2"), Tee: parse(t, "1")})
	a, err := j.Attempt(0, []logs.Worker{{LocalRank: 0}})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{a.Sink(0).StdoutPath, a.Sink(0).StderrPath} {
		if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Started(); err != nil {
		t.Fatal(err)
	}
	if got := a.StderrTail(0); got != nil {
		t.Errorf("StderrTail %q", got)
	}
	_, _ = a.Finish(t.Context())
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	j := newJob(t, logs.Config{Dir: dir, Tee: parse(t, "1")})
	a, w := j.begin(1)
	full := false
	for range 1000 {
		if _, err := w[0].out.WriteString(strings.Repeat("x", 1023) + "\n"); errors.Is(err, syscall.ENOSPC) {
			full = true
			break
		}
	}
	w[0].close()
	if !full {
		t.Fatal("the file system did not fill up")
	}
	stats, err := a.Finish(t.Context())
	if !stats.DiskFull || err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Finish: %+v, %v, want DiskFull and an error that names %s", stats, err, dir)
	}
	written := readFile(t, a.Sink(0).StdoutPath)
	if got, want := strings.Count(content(t, j.stdout), "[default0]:"), strings.Count(written, "\n"); got < want || got == 0 {
		t.Errorf("%d lines on the console, %d in the file", got, want)
	}

	// Nothing is lost of workers that write no files.
	bare := newJob(t, logs.Config{Dir: dir})
	a, w = bare.begin(1)
	fmt.Fprint(w[0].out, "out\n")
	w[0].close()
	if stats := finish(t, a); stats.DiskFull {
		t.Errorf("Finish: %+v", stats)
	}
}

// A directory that is gone is made again, and a job whose directory cannot be written to any more
// continues without files.
func TestDirectoryLost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lose  func(dir string) error
		files bool // the next attempt has some
		temp  bool // the directory is a temporary one
	}{
		{"removed", os.RemoveAll, true, false},
		{"its temporary directory removed", func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) }, true, true},
		{"somebody else's in place of the temporary one", func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(dir)), os.Mkdir(filepath.Dir(dir), 0o777))
		}, false, true},
		{"replaced by a file", func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}, false, false},
		{"read-only", func(dir string) error {
			return unix.Mount("", filepath.Dir(dir), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.name == "read-only" {
				if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
					t.Skipf("needs the right to mount a file system: %v", err)
				}
				defer unix.Unmount(dir, unix.MNT_DETACH)
			}
			cfg := logs.Config{Dir: dir, Tee: parse(t, "1"), Stdout: tempFile(t, "out"), Stderr: tempFile(t, "err")}
			if tt.temp {
				t.Setenv("TMPDIR", dir)
				cfg.Dir = ""
			}
			r, err := logs.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close(true)
			for restart := range 2 {
				a, err := r.Attempt(restart, []logs.Worker{{LocalRank: 0}})
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(a.Sink(0).Stdout, "attempt", restart)
				if err := a.Started(); err != nil {
					t.Error(err)
				}
				if stats := finish(t, a); stats.DiskFull || stats.LostBytes > 0 {
					t.Errorf("attempt %d: %+v", restart, stats)
				}
				files := restart == 0 || tt.files
				if path := a.Sink(0).StdoutPath; (path != "") != files || files && readFile(t, path) != fmt.Sprintln("attempt", restart) {
					t.Errorf("attempt %d: stdout is in %q, want a file: %v", restart, path, files)
				}
				if got := content(t, cfg.Stdout.(*os.File)); !strings.Contains(got, fmt.Sprintln("attempt", restart)) {
					t.Errorf("attempt %d: console %q", restart, got)
				}
				if restart == 0 {
					if err := tt.lose(r.Dir()); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// The run's directory holds a lock while it is used: systemd-tmpfiles leaves such directories alone.
func TestDirectoryIsLocked(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	for _, given := range []string{"", t.TempDir()} {
		r, err := logs.New(logs.Config{Dir: given, Stdout: tempFile(t, "out"), Stderr: tempFile(t, "err")})
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, want error) {
			t.Helper()
			dir, err := os.Open(r.Dir())
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, want) {
				t.Errorf("--log-dir %q: a second lock %s: %v, want %v", given, when, err, want)
			}
		}
		check("while the job runs", unix.EWOULDBLOCK)
		lost := r.Dir()
		if given == "" {
			lost = filepath.Dir(lost)
		}
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		a, err := r.Attempt(0, []logs.Worker{{LocalRank: 0}})
		if err != nil {
			t.Fatal(err)
		}
		finish(t, a)
		check("of the directory that is made again", unix.EWOULDBLOCK)
		if err := r.Close(true); err != nil {
			t.Error(err)
		}
		check("after the job", nil)
	}
}

func TestAttemptThatIsNeverStarted(t *testing.T) {
	j := newJob(t, logs.Config{Tee: parse(t, "1")})
	a, err := j.Attempt(0, []logs.Worker{{LocalRank: 0}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Finish(t.Context()); err != nil {
		t.Error(err)
	}
}
