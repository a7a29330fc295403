package postmortem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

// everything selects all streams, stdout those of stdout.
var (
	everything = postmortem.Selection{Stdout: true, Stderr: true}
	stdout     = postmortem.Selection{Stdout: true}
)

func noPrefix(string, bool) string { return "" }

func byRank(ranks string, stderr bool) string {
	return fmt.Sprintf("[%s%s]:", ranks, map[bool]string{true: "e"}[stderr])
}

// to prints to a writer.
func to(w io.Writer, prefix func(string, bool) string) postmortem.Printing {
	return postmortem.Printing{Writer: w, Prefix: prefix}
}

// printed prints all streams of the last attempt.
func printed(t *testing.T, dir string, prefix func(string, bool) string, lines int) string {
	t.Helper()
	run := read(t, dir)
	var b strings.Builder
	if err := postmortem.Print(to(&b, prefix), run.Attempts[len(run.Attempts)-1].Streams(everything), lines); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPrint(t *testing.T) {
	numbered := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "line %d\n", i)
		}
		return b.String()
	}
	long := strings.Repeat("x", 300<<10)
	tests := []struct {
		name, in string
		lines    int
		want     string
	}{
		{"all", "a\nb\n", -1, "[0]:a\n[0]:b\n"},
		{"no end", "a\nb", -1, "[0]:a\n[0]:b\n"},
		{"empty lines", "\n\na\n\n", -1, "[0]:\n[0]:\n[0]:a\n[0]:\n"},
		{"bytes stay", "a\r\n\x1b[31m\xff\n", -1, "[0]:a\r\n[0]:\x1b[31m\xff\n"},
		{"nothing", "", -1, ""},
		{"the last", "a\nb\nc\n", 2, "[0]:b\n[0]:c\n"},
		{"the last, no end", "a\nb\nc", 2, "[0]:b\n[0]:c\n"},
		{"more than there are", "a\nb\n", 5, "[0]:a\n[0]:b\n"},
		{"none", "a\nb\n", 0, ""},
		{"over blocks", numbered(100_000), 1, "[0]:line 99999\n"},
		{"a long line", long + "\nb\n", -1, "[0]:" + long + "\n[0]:b\n"},
		{"a long line without end", "a\n" + long, 1, "[0]:" + long + "\n"},
		{"zeros", "a\x00\nb\nc\n", 1, "[0]:c\n"},
		{"zeros among them", "z\na\x00\nb\nc\n", 3, "[0]:a\x00\n[0]:b\n[0]:c\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := tree(t, map[string]string{"attempt_0/0/stdout.log": tt.in})
			if got := printed(t, dir, byRank, tt.lines); got != tt.want {
				t.Errorf("%.200q, want %.200q", got, tt.want)
			}
			want := strings.ReplaceAll(tt.want, "[0]:", "")
			if got := printed(t, dir, noPrefix, tt.lines); got != want {
				t.Errorf("without prefix %.200q, want %.200q", got, want)
			}
		})
	}
}

func TestPrintSeveral(t *testing.T) {
	dir := tree(t, map[string]string{
		"attempt_0/0/stdout.log":  "old\n",
		"attempt_1/10/stdout.log": "c\n", "attempt_1/2/stdout.log": "b", "attempt_1/2/stderr.log": "be", "attempt_1/0/stdout.log": "a\n", "attempt_1/1/error.json": "{}",
	})
	if got, want := printed(t, dir, byRank, -1), "[0]:a\n[2]:b\n[2e]:be\n[10]:c\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	broken := errors.New("broken")
	run := read(t, dir)
	err := postmortem.Print(to(failing{broken}, noPrefix), run.Attempts[1].Streams(stdout), -1)
	if !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("a writer that fails: %v", err)
	}
	streams := run.Attempts[1].Streams(stdout)
	if err := os.Remove(streams[0].Path); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := postmortem.Print(to(&b, noPrefix), streams, -1); !errors.Is(err, os.ErrNotExist) || b.String() != "b\nc\n" {
		t.Errorf("a file that is gone: %q, %v", b.String(), err)
	}
}

// Equal lines of several workers are printed once, wherever they are in a long file.
func TestPrintCollapsed(t *testing.T) {
	var own, want strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&own, "line %d\n", i)
		fmt.Fprintf(&want, "[0,2-3]:line %d\n", i)
	}
	dir := tree(t, map[string]string{
		"attempt_0/0/stdout.log": own.String() + "mine\n" + "no end", "attempt_0/1/stdout.log": "", "attempt_0/1/stderr.log": "line 1\n",
		"attempt_0/2/stdout.log": own.String(), "attempt_0/3/stdout.log": own.String(),
	})
	var out strings.Builder
	cfg := to(&out, byRank)
	cfg.Collapse = true
	if err := postmortem.Print(cfg, read(t, dir).Attempts[0].Streams(everything), -1); err != nil {
		t.Error(err)
	}
	got, fromErr := strings.CutSuffix(out.String(), "[1e]:line 1\n")
	if want := want.String() + "[0]:mine\n[0]:no end\n"; got != want || !fromErr {
		t.Errorf("%d bytes, want %d; ends with %q", len(got), len(want), out.String()[max(0, out.Len()-100):])
	}
}

// So they are where they are followed: in the bubble no time passes in which they wait for each other.
func TestFollowCollapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := tree(t, map[string]string{
			"attempt_0/0/stdout.log": "same\n", "attempt_0/1/stdout.log": "same\n", "attempt_0/2/stdout.log": "same\n", "attempt_0/2/stderr.log": "same\n",
		})
		f := follow(t, dir, postmortem.FollowConfig{Lines: -1, Printing: postmortem.Printing{Collapse: true}})
		f.ends("[0-2]:same\n[2e]:same\n")
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// A followed run.
type followed struct {
	t    *testing.T
	dir  string
	out  *io.PipeReader
	stop context.CancelFunc
	done chan error
}

// follow follows a directory from its last attempt on; cfg lacks the rest.
func follow(t *testing.T, dir string, cfg postmortem.FollowConfig) *followed {
	t.Helper()
	out, in := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	f := &followed{t: t, dir: dir, out: out, stop: stop, done: make(chan error, 1)}
	if cfg.Prefix == nil {
		cfg.Prefix = byRank
	}
	if run, err := postmortem.Read(dir); err == nil && run.Last() != nil && cfg.Attempt == "" {
		cfg.Attempt = run.Last().Name
	}
	cfg.Dir, cfg.Stdout, cfg.Stderr, cfg.Writer, cfg.Logger = dir, true, true, in, slog.New(slog.DiscardHandler)
	cfg.Note = func(what string) { fmt.Fprintf(in, "== %s\n", what) }
	go func() {
		err := postmortem.Follow(ctx, cfg)
		in.Close()
		f.done <- err
	}()
	t.Cleanup(func() { stop(); out.Close() })
	return f
}

// write appends to a file, which is made with its directories.
func (f *followed) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		f.t.Fatal(err)
	}
}

// sees reads as much as want is long.
func (f *followed) sees(want string) {
	f.t.Helper()
	buf := make([]byte, len(want))
	n, err := io.ReadFull(f.out, buf)
	if err != nil || string(buf) != want {
		f.t.Fatalf("%q, %v; want %q", buf[:n], err, want)
	}
}

// endsItself waits for its end and looks at what comes last.
func (f *followed) endsItself(want string) {
	f.t.Helper()
	rest, err := io.ReadAll(f.out)
	if err := errors.Join(err, <-f.done); err != nil || string(rest) != want {
		f.t.Errorf("at the end %q, %v; want %q", rest, err, want)
	}
}

// ends ends it and looks at what comes last.
func (f *followed) ends(want string) {
	f.t.Helper()
	f.stop()
	f.endsItself(want)
}

func TestFollow(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "old 1\nold 2\nhalf"})
	f := follow(t, dir, postmortem.FollowConfig{Lines: 2})
	f.sees("[0]:old 2\n")
	f.write("attempt_0/0/stdout.log", " whole\nnext\n")
	f.sees("[0]:half whole\n[0]:next\n")

	// Files and workers that come later.
	f.write("attempt_0/0/stderr.log", "oh\n")
	f.sees("[0e]:oh\n")
	f.write("attempt_0/1/stdout.log", "me too\n")
	f.sees("[1]:me too\n")
	f.write("attempt_0/1/stdout.log", "unfinished")

	// A new attempt, from its beginning. What the one before has left comes first.
	f.write("attempt_1/0/stdout.log", "a\nb\nc\n")
	f.sees("[1]:unfinished\n== attempt_1\n[0]:a\n[0]:b\n[0]:c\n")
	f.write("attempt_1.1/0/stdout.log", "again\n")
	f.sees("== attempt_1.1\n[0]:again\n")
	f.write("attempt_1.1/0/stdout.log", "no end")
	f.ends("[0]:no end\n")
}

// A file that is cut is followed from its beginning.
func TestFollowTruncated(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a long line\n"})
	f := follow(t, dir, postmortem.FollowConfig{Lines: -1})
	f.sees("[0]:a long line\n")
	if err := os.Truncate(filepath.Join(dir, "attempt_0/0/stdout.log"), 0); err != nil {
		t.Fatal(err)
	}
	f.write("attempt_0/0/stdout.log", "new\n")
	f.sees("[0]:new\n")
	f.ends("")
}

// One attempt is followed until another begins, or has.
func TestFollowOnly(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n", "attempt_1/0/stdout.log": "b\n"})
	f := follow(t, dir, postmortem.FollowConfig{Lines: -1, Attempt: "attempt_1", Only: true})
	f.sees("[0]:b\n")
	f.write("attempt_0/0/stdout.log", "no matter\n")
	f.write("attempt_1/0/stdout.log", "late\nno end")
	f.sees("[0]:late\n")
	f.write("attempt_1.1/0/stdout.log", "c\n")
	f.endsItself("[0]:no end\n== attempt_1 is over: attempt_1.1 has begun\n")

	f = follow(t, dir, postmortem.FollowConfig{Lines: -1, Attempt: "attempt_0", Only: true})
	f.endsItself("[0]:a\n[0]:no matter\n== attempt_0 is over: attempt_1 has begun\n")
}

// Lines of two workers never mix, however long they are.
func TestFollowLongLines(t *testing.T) {
	// It is there as a whole: a reader may come upon a write half done, and up to
	// 64 KiB of a line without an end are not shown yet.
	long, rest := strings.Repeat("x", 64<<10), strings.Repeat("z", 36<<10)
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": long + rest, "attempt_0/1/stdout.log": ""})
	f := follow(t, dir, postmortem.FollowConfig{Lines: -1})
	f.sees("[0]:" + long)
	f.write("attempt_0/1/stdout.log", "y\n")
	f.sees("\n[1]:y\n")
	f.write("attempt_0/0/stdout.log", "tail\n")
	f.sees("[0]:" + rest + "tail\n")
	f.ends("")
}

var rank1 = [][2]int{{1, 1}}

// Without an attempt there is nothing to follow, until one begins.
func TestFollowFromNothing(t *testing.T) {
	f := follow(t, t.TempDir(), postmortem.FollowConfig{Lines: -1})
	f.write("attempt_0/3/stderr.log", "first\n")
	f.sees("[3e]:first\n")
	f.ends("")
}

func TestFollowWriterFails(t *testing.T) {
	dir := tree(t, map[string]string{"attempt_0/0/stdout.log": "a\n"})
	f := follow(t, dir, postmortem.FollowConfig{Lines: -1})
	broken := errors.New("broken")
	f.out.CloseWithError(broken)
	if err := <-f.done; !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
