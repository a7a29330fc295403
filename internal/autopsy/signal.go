package autopsy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/text"
)

const (
	// lookEvery is how often a file that is awaited is looked at, settled how long
	// it must then stay as it is.
	lookEvery = 10 * time.Millisecond
	settled   = 50 * time.Millisecond
	// maxDump bounds what is read of faulthandler's output.
	maxDump = 4 << 20
)

// faulthandler makes the worker write its stacks to stderr by a signal that it
// has registered for that, and reads what appears there.
func (t *taking) faulthandler(ctx context.Context, s *subject) Python {
	fail := func(format string, a ...any) Python {
		return Python{Problems: []string{"faulthandler: " + fmt.Sprintf(format, a...)}}
	}
	name := s.getenv(envDumpSignal)
	if name == "" {
		return fail("the worker's environment does not say that it has registered it (%s=SIGUSR1, and faulthandler.register(signal.SIGUSR1) in the worker)", envDumpSignal)
	}
	sig := text.ParseSignal(name)
	if sig == 0 {
		return fail("%s=%s: not a signal; want a name such as SIGUSR1", envDumpSignal, cut(name, 40))
	}
	if s.state == stateStopped || s.state == stateTraced {
		return fail("the process is %s and does not answer signals", s.state)
	}
	if !catches(s.PID, sig) {
		return fail("%s is not sent, for the worker does not catch it (faulthandler.register was not called yet)", name)
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout*3/10)
	defer cancel()
	where, ok := within(ctx, func() *output { return findOutput(s) })
	if !ok || where == nil {
		return fail("the worker's stderr is kept in no file where its output could be read")
	}
	defer where.close()
	if err := sendSignal(s.PID, s.start, sig); err != nil {
		return fail("%s: %v", name, err)
	}
	threads, ok := within(ctx, func() []Thread { return where.await(ctx) })
	if !ok || threads == nil {
		return fail("no traceback appeared in %s after %s", where.name, name)
	}
	return Python{Source: "faulthandler", Threads: threads}
}

// An output is where a worker's stderr can be read, from now on.
type output struct {
	name  string
	news  func() []byte // what was written since findOutput
	close func()
}

// findOutput prefers a file: it says where what is new begins.
func findOutput(s *subject) *output {
	for _, path := range []string{s.Stderr, "/proc/" + strconv.Itoa(s.PID) + "/fd/2"} {
		if path == "" {
			continue
		}
		if f, info, err := openOutput(path, s.uid); err == nil {
			news := func() []byte {
				text, _ := io.ReadAll(io.NewSectionReader(f, info.Size(), maxDump))
				return text
			}
			return &output{path, news, func() { f.Close() }}
		}
	}
	if s.Tail != nil {
		before := s.Tail()
		return &output{"its stderr", func() []byte { return appended(before, s.Tail()) }, func() {}}
	}
	return nil
}

// appended returns what the end of a text has got since it was before: after is
// before, less what fell off its beginning, and what is new.
func appended(before, after []byte) []byte {
	for len(before) > 0 && !bytes.HasPrefix(after, before) {
		before = before[1:]
	}
	return after[len(before):]
}

// await waits until a traceback is there and stays as it is.
func (o *output) await(ctx context.Context) (threads []Thread) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	size, since := 0, time.Now()
	for {
		if found, err := parseFaulthandler(o.news()); err == nil {
			n := 0
			for _, t := range found {
				n += 1 + len(t.Frames)
			}
			if n != size {
				threads, size, since = found, n, time.Now()
			}
			if time.Since(since) >= settled {
				return threads
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return threads
		}
	}
}
