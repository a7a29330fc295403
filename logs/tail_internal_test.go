package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// A tailed is a tail whose output a test reads as it comes.
type tailed struct {
	*running
	t   *testing.T
	out *io.PipeReader
}

func startTail(t *testing.T, cfg tailConfig) *tailed {
	t.Helper()
	r, w := io.Pipe()
	cfg.to = &console{w: w}
	return &tailed{following(t, cfg), t, r}
}

// following starts a tail. Without a prefix of their own, lines of several files have
// those of all one after the other.
func following(t *testing.T, cfg tailConfig) *running {
	cfg.open, cfg.log = safeopen.Open, slog.New(slog.DiscardHandler)
	if cfg.collapsedPrefix == nil {
		cfg.collapsedPrefix = func(localRanks []int) (all string) {
			for _, r := range localRanks {
				all += cfg.prefixes[r]
			}
			return all
		}
	}
	w := newWatcher(cfg.log)
	t.Cleanup(w.close)
	tail := newTail(cfg)
	over, stop := context.WithCancel(context.Background())
	tail.over, tail.watcher = over, w
	go tail.run()
	return &running{tail, stop}
}

// A running is a tail that has been started.
type running struct {
	*tail
	over func()
}

// end stops the tail and returns what it has counted.
func (t *running) end(ctx context.Context) (Stats, error) {
	t.over()
	err := t.wait(ctx)
	return Stats{LostBytes: t.lost.Load()}, err
}

// expect reads what the tail writes next.
func (d *tailed) expect(want string) {
	d.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(d.out, got); err != nil || string(got) != want {
		d.t.Fatalf("got %q, %v, want %q", got[:n], err, want)
	}
}

// stop ends the tail and returns what it still writes.
func (d *tailed) stop() (string, Stats) {
	d.t.Helper()
	rest := make(chan string)
	go func() {
		b, _ := io.ReadAll(d.out)
		rest <- string(b)
	}()
	stats, err := d.end(d.t.Context())
	if err != nil {
		d.t.Error(err)
	}
	d.out.CloseWithError(io.EOF)
	return <-rest, stats
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// The files come into being, one in a directory that does not exist either,
// while the tail waits for them.
func TestTailWaitsForFiles(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "sub", "two")
	d := startTail(t, tailConfig{
		files: map[int]string{1: one, 2: two, 3: filepath.Join(dir, "never")}, prefixes: map[int]string{1: "1:", 2: "2:"},
	})
	appendTo(t, filepath.Join(dir, "other"), "not followed\n")
	appendTo(t, one, "a\n")
	d.expect("1:a\n")
	if err := os.Mkdir(filepath.Dir(two), 0o700); err != nil {
		t.Fatal(err)
	}
	appendTo(t, two, "b\n")
	d.expect("2:b\n")
	appendTo(t, one, "c\n")
	d.expect("1:c\n")
	if rest, stats := d.stop(); rest != "" || stats.LostBytes != 0 {
		t.Errorf("rest %q, %+v", rest, stats)
	}
}

// A file that its worker renames is followed still; what takes its name is not.
func TestTailFollowsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	d := startTail(t, tailConfig{files: map[int]string{0: path}})
	appendTo(t, path, "a\n")
	d.expect("a\n")
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, "another file\n")
	appendTo(t, path+".old", "b\n")
	d.expect("b\n")
	if rest, _ := d.stop(); rest != "" {
		t.Errorf("rest %q", rest)
	}
}

// A line is held until it ends; updates of a progress bar are not.
func TestTailHoldsPartialLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	d := startTail(t, tailConfig{files: map[int]string{0: path}, prefixes: map[int]string{0: "P:"}})
	for _, step := range []struct{ write, want string }{
		{"par", ""},
		{"tial\nnext ", "P:partial\n"},
		{"line\r\n\r 10%", "P:next line\r\n"},
		{"\r 20%", "\rP: 10%"},
		{"\r 30%\n", "\rP: 20%\rP: 30%\n"},
		{"50%\r", ""},
		{"60%\r\n", "P:50%\rP:60%\r\n"},
		{"\xff\xfe\x00\n", "P:\xff\xfe\x00\n"},
	} {
		appendTo(t, path, step.write)
		d.expect(step.want)
	}
	appendTo(t, path, "no end")
	if rest, stats := d.stop(); rest != "P:no end\n" || stats.LostBytes != 0 {
		t.Errorf("rest %q, %+v", rest, stats)
	}
}

// Where the bars of two workers alternate, each update has a line of its own. An
// update is copied once the byte behind the carriage returns that follow it is
// known: a newline would belong to it.
func TestTailProgressBars(t *testing.T) {
	dir := t.TempDir()
	paths := map[int]string{0: filepath.Join(dir, "0"), 1: filepath.Join(dir, "1")}
	d := startTail(t, tailConfig{files: paths, prefixes: map[int]string{0: "A:", 1: "B:"}})
	for _, step := range []struct {
		rank        int
		write, want string
	}{
		{0, "\r1%\r", ""},
		{1, "10%\r\r", ""},
		{0, "2%\r", "\rA:1%"},
		{0, "3%", "\rA:2%"},          // its own line continues
		{1, "20%", "\nB:10%"},        // it ends the other's
		{1, "\r30%", "\r\rB:20%"},    // its own again
		{0, "\r4%", "\n\rA:3%"},      // and back
		{1, "\r\n", "\n\rB:30%\r\n"}, // whose end needs no newline of the tail's
		{0, "\r5%", "\rA:4%"},
		{1, "a line\n", "\nB:a line\n"},
		{0, "\r\r", ""},
		{0, "\n", "\rA:5%\r\r\n"},
		{1, "6%\r7%", "B:6%"},
	} {
		appendTo(t, paths[step.rank], step.write)
		d.expect(step.want)
	}
	appendTo(t, paths[0], "8%\r9%\r")
	d.expect("\nA:8%")
	rest, stats := d.stop()
	// Both have an end to write; it is the other's line, or its own, that continues.
	if rest != "\rA:9%\r\n\rB:7%\n" || stats.LostBytes != 0 {
		t.Errorf("rest %q, %+v", rest, stats)
	}
}

func TestTailSelectsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	d := startTail(t, tailConfig{
		files: map[int]string{0: path}, prefixes: map[int]string{0: "ERROR "}, containing: []string{"bad", "worse"},
	})
	long := strings.Repeat("x", 300<<10)
	appendTo(t, path, "good\nba")
	appendTo(t, path, "d\nERROR is in the prefix only\n\r1%\rworse%\r3%\n"+long+"worse"+long+"\n"+long+"\n"+long+"ba")
	appendTo(t, path, "d")
	want := "ERROR bad\n\rERROR worse%\nERROR " + long + "worse" + long + "\n"
	d.expect(want)
	if rest, stats := d.stop(); rest != "ERROR "+long+"bad\n" || stats.LostBytes != 0 {
		t.Errorf("rest has %d bytes, %+v", len(rest), stats)
	}
}

// A worker may empty its log or replace it by something shorter.
func TestTailBeginsAgainWhenTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	d := startTail(t, tailConfig{files: map[int]string{0: path}, prefixes: map[int]string{0: "P:"}})
	appendTo(t, path, "first\nbegun")
	d.expect("P:first\n")
	if err := os.WriteFile(path, []byte("new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.expect("P:new\n")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if rest, _ := d.stop(); rest != "" {
		t.Errorf("rest %q", rest)
	}
}

// failing fails each write until it is mended.
type failing struct {
	bytes.Buffer
	err error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.err != nil {
		n, _ := f.Buffer.Write(p[:min(len(p), 3)])
		return n, f.err
	}
	return f.Buffer.Write(p)
}

// After an error the tail continues, on a new line, and says what was lost.
func TestTailGoesOnAfterErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := &failing{err: errors.New("no space")}
	appendTo(t, path, strings.Repeat("0123456789", 30<<10)+"\n") // longer than a block
	tail := following(t, tailConfig{files: map[int]string{0: path}, to: &console{w: w}})
	if _, err := tail.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	tail = following(t, tailConfig{files: map[int]string{0: path}, to: &console{w: w}})
	stats, err := tail.end(t.Context())
	if err != nil || stats.LostBytes < 300<<10-100 || stats.LostBytes > 300<<10+1 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// A writer that is stuck does not hold up Stop longer than its context.
func TestTailStopIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, strings.Repeat("line\n", 1000))
	d := startTail(t, tailConfig{files: map[int]string{0: path}})
	d.expect("li") // the rest of the write is stuck
	cause := errors.New("hurry")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	stats, err := d.end(ctx)
	if !errors.Is(err, cause) || stats.LostBytes != 5000 {
		t.Errorf("%+v, %v", stats, err)
	}
	d.out.Close()
}

// Lines of 40 MiB, whole and filtered, take no more memory than short ones.
func TestTailMemoryIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const size = 40 << 20
	chunk := bytes.Repeat([]byte("0123456789abcde\xff"), 1<<16)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var all, some counter
	var tails []*running
	for _, cfg := range []tailConfig{{to: &console{w: &all}}, {to: &console{w: &some}, containing: []string{"needle"}}} {
		cfg.files = map[int]string{0: path}
		tails = append(tails, following(t, cfg))
	}
	for line := range 3 {
		for range size / len(chunk) {
			if _, err := f.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := fmt.Fprintf(f, "%s\n", []string{"", "needle", ""}[line]); err != nil {
			t.Fatal(err)
		}
	}
	for _, tail := range tails {
		if _, err := tail.end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if all.bytes != 3*size+9 || all.lines != 3 || some.bytes != size+7 || some.lines != 1 {
		t.Errorf("got %+v and %+v", all, some)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("%d bytes were allocated for lines of %d bytes", used, size)
	}
}

type counter struct{ bytes, lines int }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	c.lines += bytes.Count(p, []byte{'\n'})
	return len(p), nil
}

// A worker may replace what a terminal shows of its unfinished line by something shorter.
func TestTailShownIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, "0123456789")
	r, w := io.Pipe()
	d := &tailed{following(t, tailConfig{files: map[int]string{0: path}, prefixes: map[int]string{0: "P"}, to: &console{w: w, terminal: true}}), t, r}
	d.expect("P0123456789")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("a\rbcdefghijkl"), 0); err != nil {
		t.Fatal(err)
	}
	d.expect("\nPa\rPbcdefghijkl")
	d.stop()
}

// rotate does to a file what logrotate does with copytruncate.
func rotate(t *testing.T, path string) {
	t.Helper()
	all, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".1", all, 0o600)
	}
	if err == nil {
		err = os.Truncate(path, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A log that is rotated loses no line: what the tail has not read yet is in the copy, and the file may have
// grown beyond its old size since. A line that is begun is ended there.
func TestTailRotated(t *testing.T) {
	for name, next := range map[string]string{
		"shorter": "c\n", "as long": "cc\ncc\nc\n", "longer": strings.Repeat("longer\n", 100),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			d := startTail(t, tailConfig{files: map[int]string{0: path}})
			appendTo(t, path+".2", "a\nof another time\n")
			appendTo(t, path, "a\n")
			d.expect("a") // the tail cannot continue
			appendTo(t, path, "b\nbegun")
			rotate(t, path)
			appendTo(t, path, next)
			d.expect("\nb\nbegun\n" + next)
			rotate(t, path)
			appendTo(t, path, "end")
			if rest, stats := d.stop(); rest != "end\n" || stats.LostBytes != 0 {
				t.Errorf("rest %q, %+v", rest, stats)
			}
		})
	}
}

// So it is with a line that is too long to be kept.
func TestTailRotatedInLongLine(t *testing.T) {
	path, long := filepath.Join(t.TempDir(), "log"), strings.Repeat("x", 3*longUnit)
	d := startTail(t, tailConfig{files: map[int]string{0: path}})
	appendTo(t, path, "a\n"+long)
	d.expect("a\n")
	rotate(t, path)
	appendTo(t, path, "b\n")
	d.expect(long + "\nb\n")
	if rest, _ := d.stop(); rest != "" {
		t.Errorf("rest %q", rest)
	}
}

// A Stream continues over it, too: a line that is begun continues in the file.
func TestStreamRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, "old\na\nbeg")
	s, err := OpenStream(path, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got strings.Builder
	read := func() {
		t.Helper()
		for moved := true; moved; {
			if moved, err = s.Read(make([]byte, blockSize), func(c *Chunk) error {
				got.WriteString(fmt.Sprintf("<%d of %d>%s", c.Offset, c.Size, c.Data))
				return nil
			}); err != nil || s.Err() != nil {
				t.Fatal(err, s.Err())
			}
		}
	}
	read()
	appendTo(t, path, "un\nunre")
	rotate(t, path)
	appendTo(t, path, "ad\nthis is longer than what was there before\n")
	read()
	rotate(t, path)
	read()
	appendTo(t, path, "last\n")
	read()
	want := "<4 of 9>a\n<6 of 16>begun\n<12 of 16>unre<0 of 45>ad\nthis is longer than what was there before\n<0 of 5>last\n"
	if got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}

// Updates of a progress bar that are too long to be kept are units, too, however they come.
func TestTailLongUpdates(t *testing.T) {
	path, long := filepath.Join(t.TempDir(), "log"), strings.Repeat("x", longUnit+longUnit/2)
	d := startTail(t, tailConfig{files: map[int]string{0: path}, prefixes: map[int]string{0: "P:"}})
	for _, step := range []struct{ write, want string }{
		{"a\n" + long, "P:a\n"},
		{long + "\r", ""},
		{"\nb\n" + long, "P:" + long + long + "\r\nP:b\n"},
		{"\r", ""},
		{"\rc\n", "P:" + long + "\r\rP:c\n"},
	} {
		appendTo(t, path, step.write)
		d.expect(step.want)
	}
	if rest, stats := d.stop(); rest != "" || stats.LostBytes != 0 {
		t.Errorf("rest has %d bytes, %+v", len(rest), stats)
	}
}
