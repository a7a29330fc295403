package timer_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// A served is a FIFO server under test.
type served struct {
	*timer.Server
	file   *timer.FileServer
	t      *testing.T
	log    *journal
	events chan string // what happened and the scope
	mark   *exec.Cmd   // the process whose timers are marks
	marks  int
	writer *os.File
	stop   func() // ends Serve and checks that it went well
}

// serve starts a server, which ends with the test.
func serve(t *testing.T, cfg timer.Config) *served {
	t.Helper()
	s := &served{t: t, log: newJournal(), events: make(chan string, 10_000), mark: worker(t)}
	cfg.Logger = s.log.logger()
	cfg.OnExpiry = func(r timer.Request, killed bool) {
		name := "timer expired "
		if killed {
			name = "kill worker process "
		}
		s.events <- name + r.ScopeID
	}
	if owns := cfg.Owns; owns != nil {
		cfg.Owns = func(pid int) bool { return pid == s.mark.Process.Pid || owns(pid) }
	}
	var err error
	if s.Server, err = timer.NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	if s.file, err = timer.ListenFIFO(s.Server, filepath.Join(t.TempDir(), "fifo")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{s.Run, s.file.Serve} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if s.writer, err = os.OpenFile(s.path(), os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		s.writer.Close()
		cancel()
		wg.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

func (s *served) path() string { return s.file.Path() }

// event waits for the next event.
func (s *served) event(want string) {
	s.t.Helper()
	select {
	case got := <-s.events:
		if got != want {
			s.t.Fatalf("event %q, want %q", got, want)
		}
	case <-time.After(testproc.Patience):
		s.t.Fatalf("no event %q; the log:\n%s", want, s.log)
	}
}

// write writes as a client does that keeps the FIFO open.
func (s *served) write(text string) {
	s.t.Helper()
	if _, err := s.writer.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// sync waits until all that was written is dealt with: a line after it is.
func (s *served) sync() {
	s.t.Helper()
	s.marks++
	scope := fmt.Sprint("mark ", s.marks)
	s.write(line(s.mark.Process.Pid, scope, 0, 0))
	s.event("timer expired " + scope)
}

// scopes are those of a process' live timers.
func (s *served) scopes(pid int) []string {
	var list []string
	for _, r := range s.Live(0) {
		if r.PID == pid {
			list = append(list, r.ScopeID)
		}
	}
	return list
}

const never = 1e11 // long after the year 2262

func TestLines(t *testing.T) {
	w := worker(t)
	pid := w.Process.Pid
	a, b, c := line(pid, "a", never, 9), line(pid, "b", never+1, 9), line(pid, "c", never+2, 9)
	bare := func(l string) string { return strings.TrimSuffix(l, "\n") }
	wide := func(n int) string { // a line of n bytes with its newline
		l := strings.Replace(bare(b), "{", `{"more": "", `, 1)
		return strings.Replace(l, `""`, `"`+strings.Repeat("x", n-len(l)-1)+`"`, 1) + "\n"
	}
	tests := []struct {
		name      string
		writes    []string
		want      []string
		malformed uint64
		tooLong   uint64
		log       string
	}{
		{name: "one", writes: []string{a}, want: []string{"a"}},
		{name: "several in a write", writes: []string{a + b + c}, want: []string{"a", "b", "c"}},
		{name: "split over writes", writes: []string{a + b[:10], b[10:30], b[30:] + c}, want: []string{"a", "b", "c"}},
		{name: "split before the newline", writes: []string{bare(a), "\n" + b}, want: []string{"a", "b"}},
		{name: "released", writes: []string{a + b, line(pid, "a", -1, 0)}, want: []string{"b"}},
		{name: "unknown release", writes: []string{line(pid, "x", -1, 0) + a}, want: []string{"a"}},
		{name: "no newline at the end", writes: []string{a, bare(b)}, want: []string{"a", "b"}},
		{name: "no newlines at all", writes: []string{bare(a), bare(b), bare(c)}, want: []string{"a", "b", "c"}},
		{name: "no newline between", writes: []string{bare(a) + bare(b) + "\n" + c}, want: []string{"a", "b", "c"}, malformed: 1, log: "after top-level value"},
		{name: "malformed between", writes: []string{a + "{nonsense}\n" + b}, want: []string{"a", "b"}, malformed: 1, log: `text={nonsense}`},
		{name: "field is missing", writes: []string{a + "{\"pid\": 1}\n" + b}, want: []string{"a", "b"}, malformed: 1, log: `no \"scope_id\"`},
		{name: "empty line", writes: []string{a + "\n" + b}, want: []string{"a", "b"}, malformed: 1},
		{name: "carriage returns", writes: []string{bare(a) + "\r\n" + b}, want: []string{"a", "b"}},
		{name: "another version", writes: []string{strings.Replace(a, `"version": 1`, `"version": 99`, 1)}, want: []string{"a"}},
		{name: "other fields", writes: []string{strings.Replace(a, `"version": 1`, `"run_id": "other"`, 1)}, want: []string{"a"}},
		{name: "a writer died within its line", writes: []string{a[:20], b}, want: []string{"b"}, malformed: 1, log: "malformed"},
		{name: "two writers died", writes: []string{a[:20], b[:50], c}, want: []string{"c"}, malformed: 1},
		{name: "not UTF-8", writes: []string{strings.Replace(a, `"a"`, "\"\xff\"", 1) + b}, want: []string{"b"}, malformed: 1, log: "not UTF-8"},
		{name: "NUL bytes", writes: []string{"\x00\x00\n" + b}, want: []string{"b"}, malformed: 1},
		{name: "over PIPE_BUF", writes: []string{a + wide(5000) + c}, want: []string{"a", "b", "c"}},
		{name: "as long as may be", writes: []string{a + wide(64<<10) + c}, want: []string{"a", "b", "c"}},
		{name: "too long", writes: []string{a + wide(128<<10+10) + c}, want: []string{"a", "c"}, malformed: 1, tooLong: 1, log: "longer than 65536 bytes"},
		{name: "too long without end", writes: []string{a + strings.Repeat("x", 300<<10), "x\n" + c}, want: []string{"a", "c"}, malformed: 1, tooLong: 1, log: "longer than 65536 bytes"},
		{name: "scope too long", writes: []string{a + line(pid, strings.Repeat("s", 4097), never, 9) + c}, want: []string{"a", "c"}, log: "scope of 4097 bytes"},
		{name: "pid that is not there", writes: []string{line(math31, "x", 0, 9) + a}, want: []string{"a"}, log: "no such process"},
		{name: "signal that is none", writes: []string{line(pid, "x", 0, 99) + a}, want: []string{"a"}, log: "signal 99"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, timer.Config{})
			lines := uint64(strings.Count(strings.Join(tt.writes, ""), "\n"))
			for _, text := range tt.writes {
				s.write(text)
				s.settle()
			}
			s.sync()
			if diff := cmp.Diff(tt.want, s.scopes(pid)); diff != "" {
				t.Errorf("timers (-want +got)\n%s\nlog:\n%s", diff, s.log)
			}
			got := s.Stats().FIFO
			if got.Malformed != tt.malformed || got.TooLong != tt.tooLong {
				t.Errorf("%d malformed, %d too long, want %d, %d", got.Malformed, got.TooLong, tt.malformed, tt.tooLong)
			}
			if got.Lines < lines {
				t.Errorf("%d lines, want at least %d", got.Lines, lines)
			}
			s.stop()
			if !strings.Contains(s.log.String(), tt.log) {
				t.Errorf("log %s, want %s in it", s.log, tt.log)
			}
		})
	}
}

const math31 = 1<<31 - 1

// settle waits until the server has read what was written, so that the next write
// does not join it.
func (s *served) settle() {
	s.t.Helper()
	fd := int(s.writer.Fd())
	for end := time.Now().Add(testproc.Patience); ; {
		n, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD
		if err != nil {
			s.t.Fatal(err)
		}
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d bytes are not read", n)
		}
		_, _ = unix.Poll(nil, 1)
	}
}

func TestManyWriters(t *testing.T) {
	s := serve(t, timer.Config{})
	const writers, each = 8, 250
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			client := &timer.FileClient{Path: s.path()}
			for j := range each {
				// Long enough that they do not fit into a pipe's page.
				scope := fmt.Sprintf("%d/%d/%s", i, j, strings.Repeat("x", 10*j))
				if err := client.Acquire(scope, time.Now().Add(time.Hour)); err != nil {
					t.Error(err)
					return
				}
				if j%2 == 1 {
					if err := client.Release(scope); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	s.sync()
	if got := s.Stats(); got.Timers != writers*each/2 || s.Stats().FIFO.Malformed+got.Refused != 0 {
		t.Errorf("got %+v, want %d timers", got, writers*each/2)
	}
}

func TestKills(t *testing.T) {
	tests := []struct {
		name   string
		config func(timer.Config) timer.Config
	}{
		{"pidfd", func(c timer.Config) timer.Config { return c }},
		{"start time", timer.Bare},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.config(timer.Config{}))
			w, other := worker(t), worker(t)
			pid := w.Process.Pid
			at := now() + 0.1
			s.write(line(other.Process.Pid, "other", never, 9) + line(pid, "later", at+100, 9) +
				line(pid, "a", at, 0) + line(pid, "b", at, 15) + line(pid, "c", at, 9))
			if got := endedBy(t, w); got != syscall.SIGTERM {
				t.Errorf("ended by %v, want SIGTERM", got)
			}
			if late := now() - at; late < 0 {
				t.Errorf("killed %v s early", -late)
			}
			s.event("timer expired a")
			s.event("timer expired b")
			s.event("kill worker process b")
			s.sync()
			if got := s.scopes(other.Process.Pid); !cmp.Equal(got, []string{"other"}) {
				t.Errorf("the other process has timers %q", got)
			}
		})
	}
}

func TestEventOrder(t *testing.T) {
	s := serve(t, timer.Config{})
	w := worker(t)
	pid := w.Process.Pid
	s.write(line(pid, "c", 3, 9) + line(pid, "a", 1, 0) + line(pid, "b", 2, 15) + line(pid, "later", never, 9))
	s.event("timer expired a")
	s.event("timer expired b")
	s.event("kill worker process b")
	if got := endedBy(t, w); got != syscall.SIGTERM {
		t.Errorf("ended by %v, want SIGTERM", got)
	}
	s.sync()
	if got := s.scopes(pid); got != nil {
		t.Errorf("it still has timers %q", got)
	}
	s.stop()
	if len(s.events) > 0 {
		t.Errorf("then event %q", <-s.events)
	}
}

func TestSignalZeroReports(t *testing.T) {
	for _, sig := range []syscall.Signal{0, -9} {
		s := serve(t, timer.Config{})
		w := worker(t)
		s.write(line(w.Process.Pid, "a", 1, sig))
		s.event("timer expired a")
		s.write(line(w.Process.Pid, "b", never, sig))
		s.sync()
		if got := s.scopes(w.Process.Pid); !cmp.Equal(got, []string{"b"}) {
			t.Errorf("it has timers %q, want only b", got)
		}
		if err := w.Process.Signal(syscall.SIGKILL); err != nil {
			t.Error("it does not live:", err)
		}
		s.stop()
	}
}

func TestRefusesStrangers(t *testing.T) {
	mine, other := worker(t), worker(t)
	s := serve(t, timer.Config{Owns: func(pid int) bool { return pid == mine.Process.Pid }})
	s.write(line(other.Process.Pid, "x", 1, 9) + line(mine.Process.Pid, "a", never, 9) + line(1, "x", 1, 9))
	s.sync()
	got := s.Stats()
	if got.Refused != 2 || got.Timers != 1 {
		t.Errorf("got %+v, want two refused and one timer", got)
	}
	s.stop()
	if text := s.log.String(); !strings.Contains(text, "not a process of this server") || !strings.Contains(text, "pid="+strconv.Itoa(other.Process.Pid)) {
		t.Errorf("log %s", text)
	}
}

// The log of a flood of nonsense stays short, and says how much it is.
func TestMalformedFlood(t *testing.T) {
	s := serve(t, timer.Config{})
	const flood = 20_000
	s.write(strings.Repeat("nonsense\n", flood))
	s.sync()
	if got := s.Stats().FIFO.Malformed; got != flood {
		t.Errorf("%d malformed, want %d", got, flood)
	}
	s.stop()
	logged := strings.Count(s.log.String(), "malformed timer request skipped")
	if limit := flood / 10; logged < 1 || logged > limit {
		t.Errorf("logged %d of %d, want at least one and at most %d", logged, flood, limit)
	}
	if !strings.Contains(s.log.String(), "not_logged=") {
		t.Error("the log does not say how many it left out")
	}
}

// Who floods the FIFO delays nobody's deadline.
func TestFloodKeepsDeadlines(t *testing.T) {
	s := serve(t, timer.Config{})
	noisy, w := worker(t), worker(t)
	at := now() + 0.3
	s.write(line(w.Process.Pid, "s", at, 9))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		file, err := os.OpenFile(s.path(), os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		text := strings.Repeat(line(noisy.Process.Pid, "x", never, 9)+line(noisy.Process.Pid, "x", -1, 0), 100)
		for ctx.Err() == nil {
			if _, err := file.WriteString(text); err != nil {
				t.Error(err)
				return
			}
		}
	})
	endedBy(t, w)
	late := now() - at
	t.Logf("%.1f ms late after %d requests", 1000*late, s.Stats().FIFO.Lines)
	if late < 0 || late > busy { // the flood ends only after this
		t.Errorf("killed %.1f ms late", 1000*late)
	}
}

// A FIFO that somebody removes still brings what writers have to say that have it open.
func TestRemovedFIFO(t *testing.T) {
	s := serve(t, timer.Config{})
	pid := worker(t).Process.Pid
	s.write(line(pid, "before", never, 9))
	if err := os.Remove(s.path()); err != nil {
		t.Fatal(err)
	}
	s.write(line(pid, "after", never, 9))
	s.settle()
	if diff := cmp.Diff([]string{"after", "before"}, s.scopes(pid)); diff != "" {
		t.Errorf("timers (-want +got)\n%s", diff)
	}
}

// A server whose FIFO somebody replaced keeps its timers and leaves the other alone.
func TestReplacedFIFO(t *testing.T) {
	s := serve(t, timer.Config{})
	w := worker(t)
	at := now() + 0.2
	s.write(line(w.Process.Pid, "s", at, 9))
	s.settle()
	other := s.path() + ".other"
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, s.path()); err != nil {
		t.Fatal(err)
	}
	if got := endedBy(t, w); got != syscall.SIGKILL {
		t.Errorf("ended by %v", got)
	}
	s.stop()
	if text, err := os.ReadFile(s.path()); string(text) != "precious" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestListenFIFO(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, path string) error
		err  string // empty: it is replaced
	}{
		{"nothing", func(*testing.T, string) error { return nil }, ""},
		{"stale FIFO", func(_ *testing.T, path string) error { return syscall.Mkfifo(path, 0o600) }, ""},
		{"empty file", func(_ *testing.T, path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
		{"file", func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("precious"), 0o600) }, "a file of 8 bytes is there"},
		{"directory", func(_ *testing.T, path string) error { return os.Mkdir(path, 0o700) }, "something else is there (d"},
		{"symbolic link", func(_ *testing.T, path string) error { return os.Symlink("/nowhere", path) }, "something else is there (L"},
		{"FIFO of another server", func(t *testing.T, path string) error {
			f, err := timer.StartFIFO(timer.Config{}, path)
			if err != nil {
				return err
			}
			t.Cleanup(func() { f.Close() })
			return (&timer.FileClient{Path: path}).Release("it is open")
		}, "another server reads it"},
	}
	server, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fifo")
			if err := tt.make(t, path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			f, err := timer.ListenFIFO(server, path)
			after, lerr := os.Lstat(path)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want %s and %s", err, path, tt.err)
				}
				if lerr != nil || !os.SameFile(before, after) || before.Size() != after.Size() {
					t.Errorf("what was there is changed: %v", lerr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if after.Mode() != 0o600|fs.ModeNamedPipe {
				t.Errorf("mode %v, want %v", after.Mode(), 0o600|fs.ModeNamedPipe)
			}
			for range 2 {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is left: %v", err)
			}
			if err := f.Serve(t.Context()); err == nil {
				t.Error("it serves after Close")
			}
		})
	}
	for _, path := range []string{"/proc/none/fifo", "/dev/null/fifo", "/proc/fifo"} {
		if f, err := timer.ListenFIFO(server, path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
	if _, err := timer.NewServer(timer.Config{MaxInterval: -1, MaxTimers: -1}); err == nil ||
		!strings.Contains(err.Error(), "MaxInterval") || !strings.Contains(err.Error(), "MaxTimers") {
		t.Errorf("bad config: %v", err)
	}
}

// One server does for all attempts of a worker group.
func TestReset(t *testing.T) {
	old, next := worker(t), worker(t)
	var owned sync.Map
	owned.Store(old.Process.Pid, true)
	owns := func(pid int) bool { _, ok := owned.Load(pid); return ok }
	s := serve(t, timer.Config{Owns: owns})
	s.write(line(old.Process.Pid, "old", never, 9))
	s.sync()
	// The new worker is there, and known, before the server is told.
	s.Reset(func(pid int) bool { return pid == next.Process.Pid || pid == s.mark.Process.Pid })
	s.write(line(next.Process.Pid, "new", now()+0.1, 15) + line(old.Process.Pid, "late", 1, 9))
	s.event("timer expired new")
	s.event("kill worker process new")
	if got := endedBy(t, next); got != syscall.SIGTERM {
		t.Errorf("the new worker ended by %v", got)
	}
	if got := s.scopes(old.Process.Pid); len(got) > 0 {
		t.Errorf("the old worker has timers %q", got)
	}
	if err := old.Process.Signal(syscall.SIGCONT); err != nil {
		t.Errorf("the old worker, whose timers do not count, does not live: %v", err)
	}
}

// The reader takes requests that come while Reset runs, by the old or the new rule.
func TestResetLosesNothing(t *testing.T) {
	s := serve(t, timer.Config{})
	w := worker(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			s.Reset(nil)
		}
	})
	wg.Go(func() {
		client := &timer.FileClient{Path: s.path()}
		for i := range 200 {
			if err := client.Send(req(w.Process.Pid, fmt.Sprint(i), never, 9)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	s.sync()
	if got := s.Stats(); got.Refused != 0 || got.Acquired < 200 {
		t.Errorf("got %+v, want none refused", got)
	}
}

func TestFileProgress(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	begin := time.Now()
	s := serve(t, timer.Config{Owns: func(int) bool {
		entered <- true
		<-leave
		return true
	}})
	s.sync()
	if got := s.Progress(); got.Before(begin) {
		t.Errorf("progress %v, want now", got)
	}
	w := worker(t)
	s.write(line(w.Process.Pid, "s", never, 9))
	<-entered // the reader is stuck
	stuck := time.Now()
	for time.Since(stuck) < time.Millisecond {
	}
	if got := s.Progress(); got.After(stuck) || got.Before(begin) {
		t.Errorf("progress %v while the reader is stuck since %v", got, stuck)
	}
	leave <- true
	s.sync()
	before := time.Now()
	for since := before; ; since = time.Now() {
		if got := s.Progress(); !got.Before(before) {
			break
		}
		if since.Sub(before) > testproc.Patience {
			t.Fatal("no progress")
		}
	}
}
