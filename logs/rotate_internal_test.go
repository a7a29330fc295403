package logs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const testMax = 1 << 20

// A rotation is a rotator that looks when a test wants it to, and one file.
type rotation struct {
	*rotator
	t    *testing.T
	f    *rotated
	log  bytes.Buffer
	next int // number of the next line
}

func newRotation(t *testing.T, keep int) *rotation {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("files are rotated on Linux only")
	}
	x := &rotation{t: t}
	x.rotator = newRotator(testMax, keep, slog.New(slog.NewTextHandler(&x.log, nil)))
	path := filepath.Join(t.TempDir(), "stdout.log")
	worker, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	if x.f = x.open(path, worker); x.f == nil {
		t.Skip(x.log.String())
	}
	t.Cleanup(func() { x.f.file.Close() })
	return x
}

func (x *rotation) look() time.Duration { return x.f.look(false) }

// write appends lines of 64 bytes.
func (x *rotation) write(size int) string {
	x.t.Helper()
	var b strings.Builder
	for range size / 64 {
		fmt.Fprintf(&b, "%-63d\n", x.next)
		x.next++
	}
	x.append(b.String())
	return b.String()
}

func (x *rotation) append(text string) {
	x.t.Helper()
	f, err := os.OpenFile(x.f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		x.t.Fatal(err)
	}
}

// expect compares what a reader gets.
func (x *rotation) expect(want string) {
	x.t.Helper()
	r, err := OpenRotated(x.f.path)
	if err != nil {
		x.t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		x.t.Fatalf("read %d bytes, %v, want %d; they differ at %d: %.80q, want %.80q", len(got), err, len(want), at, got[at:], want[at:])
	}
}

func (x *rotation) segments() []string {
	names, _ := filepath.Glob(x.f.path + ".*")
	return names
}

func TestRotate(t *testing.T) {
	x := newRotation(t, 100)
	text := x.write(testMax)
	x.look()
	if s := x.segments(); len(s) != 0 {
		t.Errorf("segments %q of a file that is not too large", s)
	}
	text += x.write(64)
	x.look()
	if s := x.segments(); len(s) != 1 || filepath.Base(s[0]) != "stdout.log.000001.gz" {
		t.Errorf("segments %q", s)
	}
	x.expect(text)
	text += x.write(5 * testMax)
	x.look()
	if s := x.segments(); len(s) < 6 {
		t.Errorf("segments %q", s)
	}
	x.expect(text)
	// Each segment holds whole lines, for other programs too.
	all := ""
	for _, path := range x.segments() {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(z)
		if err != nil || !strings.HasSuffix(string(part), "\n") || z.Name != "stdout.log" {
			t.Errorf("%s: %q, %v, ends with %q", path, z.Name, err, part[max(len(part)-9, 0):])
		}
		all += string(part)
		f.Close()
	}
	if !strings.HasPrefix(text, all) || len(text)-len(all) > testMax || len(text)-len(all) < keptBack {
		t.Errorf("segments hold %d of %d bytes", len(all), len(text))
	}
}

// What Keep would remove at once is not compressed; the rest is as it would be.
func TestRotateKeep(t *testing.T) {
	for _, size := range []int{3 * testMax, 10 * testMax} {
		x := newRotation(t, 2)
		text := x.write(size)
		x.look()
		if s := x.segments(); len(s) != 2 {
			t.Errorf("segments %q", s)
		}
		r, err := OpenRotated(x.f.path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !strings.HasSuffix(text, string(got)) || got[63] != '\n' || len(got) < 2*(testMax-keptBack)+keptBack-128 {
			t.Errorf("of %d bytes, %d are left, %v: %.80q", len(text), len(got), err, got)
		}
		r.Close()
	}
}

func TestRotateTruncated(t *testing.T) {
	for _, again := range []bool{false, true} { // whether it was rotated after that
		for _, size := range []int{1000, 4 * testMax} {
			x := newRotation(t, 100)
			before := x.write(3 * testMax)
			x.look()
			moved := x.f.from
			if err := os.Truncate(x.f.path, 0); err != nil {
				t.Fatal(err)
			}
			after := x.write(size)
			if again {
				x.look()
			}
			x.expect(before[:moved] + after)
		}
	}
}

// The agent was killed between a segment's name and the hole.
func TestRotateKilled(t *testing.T) {
	x := newRotation(t, 100)
	text := x.write(3 * testMax)
	x.look()
	from := x.f.from - (testMax - keptBack)
	if _, err := x.f.file.WriteAt([]byte(text[from:x.f.from]), from); err != nil {
		t.Fatal(err)
	}
	x.expect(text)
}

func TestRotateRemovedByHand(t *testing.T) {
	x := newRotation(t, 100)
	text := x.write(4 * testMax)
	x.look()
	segments := x.segments()
	for _, path := range segments[1:] {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	first := strings.LastIndexByte(text[:testMax-keptBack], '\n') + 1
	x.expect(text[:first] + text[x.f.from:])
	if err := os.Remove(segments[0]); err != nil {
		t.Fatal(err)
	}
	x.expect(text[x.f.from:])
	text += x.write(testMax)
	x.expect(text[x.f.from:])
}

// What the console lacks stays.
func TestRotateSlowConsole(t *testing.T) {
	x := newRotation(t, 100)
	tail := &follower{t: &tail{tailConfig: tailConfig{to: &console{}}}}
	x.f.tails = []*follower{tail}
	text := x.write(4 * testMax)
	if x.look(); len(x.segments()) != 0 {
		t.Errorf("segments %q of what nobody has copied", x.segments())
	}
	tail.start.Store(2*testMax + 7)
	if x.look(); x.f.from > 2*testMax+7 || x.f.from < testMax {
		t.Errorf("moved %d bytes", x.f.from)
	}
	x.expect(text)
	x.f.look(true)
	if x.f.from < 3*testMax {
		t.Errorf("moved %d bytes at the end", x.f.from)
	}
	x.expect(text)
}

// A console that has been closed gets no more: the file does not grow for it.
func TestRotateClosedConsole(t *testing.T) {
	x := newRotation(t, 100)
	gone := &console{}
	gone.closed.Store(true)
	x.f.tails = []*follower{{t: &tail{tailConfig: tailConfig{to: gone}}}}
	text := x.write(4 * testMax)
	if x.look(); x.f.from < 3*testMax {
		t.Errorf("moved %d bytes", x.f.from)
	}
	x.expect(text)
}

// A file that cannot be followed does not grow for it.
func TestRotateNotFollowed(t *testing.T) {
	x := newRotation(t, 100)
	cfg := tailConfig{to: &console{}, log: x.rotator.log, open: func(string) (*os.File, fs.FileInfo, error) { return nil, nil, fs.ErrPermission }}
	x.f.tails = []*follower{{t: &tail{tailConfig: cfg}}}
	x.f.tails[0].open()
	text := x.write(4 * testMax)
	if x.look(); x.f.from < 3*testMax {
		t.Errorf("moved %d bytes", x.f.from)
	}
	x.expect(text)
}

func TestRotateLongLine(t *testing.T) {
	x := newRotation(t, 100)
	text := strings.Repeat("a line without end ", 5*testMax/19)
	x.append(text)
	x.look()
	if len(x.segments()) < 4 {
		t.Errorf("segments %q", x.segments())
	}
	x.expect(text)
}

// Where a segment cannot be made the file stays as it is.
func TestRotateCannot(t *testing.T) {
	for name, breakIt := range map[string]func(x *rotation) error{
		"temporary file": func(x *rotation) error { return os.Mkdir(x.f.path+".gz.tmp", 0o700) },
		"name":           func(x *rotation) error { return os.Mkdir(segmentPath(x.f.path, 1), 0o700) },
		"hole": func(x *rotation) (err error) {
			x.f.file.Close()
			x.f.file, err = os.Open(x.f.path)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRotation(t, 100)
			if err := breakIt(x); err != nil {
				t.Fatal(err)
			}
			text := x.write(3 * testMax)
			if next := x.look(); next != retryAfter {
				t.Errorf("looks again after %v", next)
			}
			if n := strings.Count(x.log.String(), "cannot rotate"); n != 1 {
				t.Errorf("%d warnings: %s", n, x.log.String())
			}
			if name == "name" {
				os.Remove(segmentPath(x.f.path, 1))
			}
			for _, path := range x.segments() {
				if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
					t.Errorf("%s is left", path)
				}
			}
			x.expect(text)
		})
	}
}

func TestRotateUnsupported(t *testing.T) {
	x := newRotation(t, 1)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range 2 {
		if f := x.open(os.DevNull, null); f != nil {
			t.Error("rotates a device")
		}
	}
	if n := strings.Count(x.log.String(), "cannot be rotated here"); n != 1 {
		t.Errorf("%d warnings: %s", n, x.log.String())
	}
}

// Neither a link in the way of a segment nor one that has taken the log's place leads
// anywhere.
func TestRotateFollowsNoLink(t *testing.T) {
	x := newRotation(t, 1)
	text := strings.Repeat("precious", 1000)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte(text), 0o600), os.Symlink(victim, x.f.path+".gz.tmp")); err != nil {
		t.Fatal(err)
	}
	x.write(2 * testMax)
	x.look()
	if len(x.segments()) == 0 {
		t.Error("there is no segment")
	}
	if x.open(victim, x.f.file) != nil {
		t.Error("takes another file for the worker's")
	}
	if got, err := os.ReadFile(victim); string(got) != text {
		t.Errorf("the victim has changed: %.20q, %v", got, err)
	}
}

func TestOpenRotatedWithoutSegments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout.log")
	if _, err := OpenRotated(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	appendTo(t, path, "a\n")
	r, err := OpenRotated(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, want := range []string{"a\n", "b\n", ""} {
		if got, err := io.ReadAll(r); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if want == "a\n" {
			appendTo(t, path, "b\n")
		}
	}
}

// A Stream begins at any line, in whichever segment that is, and goes on while the file is rotated,
// and when it is cut.
func TestOpenStream(t *testing.T) {
	x := newRotation(t, 100)
	all := x.write(3 * testMax)
	x.look()
	n, size := len(all)/64, len(all)
	buf := make([]byte, blockSize)
	reads := func(s *Stream, what, want string) {
		t.Helper()
		var got strings.Builder
		for moved := true; moved; {
			var err error
			if moved, err = s.Read(buf, func(c *Chunk) error {
				if c.Lost != 0 || c.Data[len(c.Data)-1] != '\n' || c.Size != int64(size) {
					t.Errorf("%s: %d bytes lost before %.80q, of %d, want %d", what, c.Lost, c.Data, c.Size, size)
				}
				got.Write(c.Data)
				return nil
			}); err != nil || s.Err() != nil {
				t.Fatal(err, s.Err())
			}
		}
		if got.String() != want {
			t.Errorf("%s: %d lines from %.10q, want %d from %.10q", what, got.Len()/64, got.String(), len(want)/64, want)
		}
	}
	var last *Stream
	for _, lines := range []int{-1, 0, 1, 4095, 4096, 4097, 20_000, n - 1, n, n + 1} {
		s, err := OpenStream(x.f.path, lines)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		from := max(0, n-lines)
		if lines < 0 {
			from = 0
		}
		reads(s, fmt.Sprint(lines, " lines"), all[from*64:])
		last = s
	}
	more := x.write(2 * testMax)
	x.look()
	size += len(more)
	reads(last, "what came since", more)
	if err := os.Truncate(x.f.path, 0); err != nil {
		t.Fatal(err)
	}
	size += 640
	reads(last, "what came since it was cut", x.write(640))
	for _, path := range []string{x.f.path + "x", filepath.Dir(x.f.path)} {
		if _, err := OpenStream(path, 1); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDamagedSegment(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":     func(b []byte) []byte { return nil },
		"cut":       func(b []byte) []byte { return b[:len(b)/2] },
		"no header": func(b []byte) []byte { return b[30:] },
		"flipped":   func(b []byte) []byte { b[len(b)-8] ^= 1; return b },
		"foreign": func([]byte) []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			z.Close()
			return b.Bytes()
		},
		"shorter than said": func(b []byte) []byte { b[12+4+16]++; return b },
	} {
		t.Run(name, func(t *testing.T) {
			x := newRotation(t, 100)
			x.write(3 * testMax)
			x.look()
			path := x.segments()[0]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := OpenRotated(x.f.path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzSegment(f *testing.F) {
	f.Add(segment{generation: 1, from: 2, to: 1 << 40}.extra())
	f.Add(segment{gap: true, to: 9}.extra())
	f.Add([]byte("Mu\x18\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s segment
		if s.parse(b) == nil && !bytes.Equal(s.extra(), b) {
			t.Errorf("%q became %+v", b, s)
		}
	})
}
