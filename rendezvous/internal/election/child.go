package election

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/internal/wire/pipe"
)

// fork starts children, all from one thread that lives as long as they do, since
// their parent-death signal is tied to it.
func (e *Election) fork() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for start := range e.forks {
		start()
	}
}

// A child is one process of muster-quorum.
type child struct {
	cmd    *exec.Cmd
	in     *pipe.Writer
	stdin  io.Closer
	out    *pipe.Reader
	stderr sync.WaitGroup

	panicked string // the first line of its panic; set when stderr has ended
}

// A minder keeps one kind of child running. One goroutine, mind, waits for each child and starts the next.
// That end reaches a child in any case is due to the order under mu: end sets op and then reads child, start
// sets child and then reads op. Whichever comes second tells the child.
type minder struct {
	e        *Election
	mode     string // "elect" or "serve"
	settings any
	limit    restarts
	done     chan struct{} // closed when no child is left and none will be started

	mu    sync.Mutex    // guards what follows
	child *child        // nil while there is none
	op    string        // from end; no child is started after that
	kick  chan struct{} // closed by end: again waits no longer
	fault error         // what the child that end told to end had to say
}

func newMinder(e *Election, mode string, settings any) *minder {
	return &minder{e: e, mode: mode, settings: settings, done: make(chan struct{}), kick: make(chan struct{})}
}

// start starts a child and gives it its settings.
func (m *minder) start() (*child, error) {
	c := &child{cmd: exec.Command(m.e.program, m.mode)}
	c.cmd.Env = environment()
	c.cmd.SysProcAttr = childAttributes()
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	m.e.forks <- func() { started <- children.Start(c.cmd) }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s %s: %w", m.e.program, m.mode, err)
	}
	c.in, c.stdin, c.out = pipe.NewWriter(stdin), stdin, pipe.NewReader(stdout)
	c.stderr.Go(func() { c.panicked = m.e.relay(stderr, c.cmd.Process.Pid) })
	_ = c.in.Write(m.settings) // a child that cannot read it ends, which is seen
	m.mu.Lock()
	m.child = c
	op := m.op
	m.mu.Unlock()
	if op != "" {
		c.finish(op)
	}
	m.e.logger.Debug("started muster-quorum "+m.mode, "pid", c.cmd.Process.Pid, "run_id", m.e.cfg.RunID)
	return c, nil
}

// beat shows the bridge that this agent is well, until there is no bridge any more.
func (e *Election) beat() {
	m, tick := e.bridge, time.NewTicker(time.Duration(e.cfg.TTL)/4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.done:
			return
		}
		op := "beat"
		if e.cfg.Beat != nil && e.cfg.Beat() {
			op = "yield"
		}
		m.mu.Lock()
		c := m.child
		m.mu.Unlock()
		if c != nil {
			_ = c.in.Write(pipe.Command{Op: op})
		}
	}
}

// finish tells a child to end.
func (c *child) finish(op string) {
	_ = c.in.Write(pipe.Command{Op: op})
	_ = c.stdin.Close()
}

// mind lives with a child and its successors until end, or until one more would
// not help.
func (m *minder) mind(c *child) {
	defer close(m.done)
	for c != nil {
		fault := m.listen(c)
		c.stderr.Wait()
		err := children.Wait(c.cmd)
		if err != nil && c.panicked != "" {
			err = fmt.Errorf("%w: %s", err, c.panicked)
		}
		m.mu.Lock()
		m.child = nil
		ending := m.op != ""
		if ending {
			m.fault = lastWord(m.mode, fault, err)
		}
		m.mu.Unlock()
		m.e.reports <- report{from: m, ended: true}
		switch {
		case ending:
			return
		case fault != nil:
			m.e.reports <- report{from: m, final: fault}
			return
		}
		if c, err = m.again(err); err != nil {
			m.e.reports <- report{from: m, final: err}
		}
	}
}

// lastWord is the error of a child that was told to end.
func lastWord(mode string, fault, exit error) error {
	if fault == nil && exit != nil {
		return fmt.Errorf("muster-quorum %s: %w", mode, exit)
	}
	return fault
}

// listen passes a child's reports on until it closes its stdout, and returns the
// error that it ended with, if it said one.
func (m *minder) listen(c *child) (fault error) {
	for {
		var r pipe.Report
		err := c.out.Read(&r)
		switch {
		case errors.Is(err, io.EOF):
			return fault
		case err != nil:
			m.e.logger.Error("muster-quorum "+m.mode, "error", err, "pid", c.cmd.Process.Pid)
			_ = c.cmd.Process.Kill()
			return fault
		case r.Error != "":
			fault = errors.New(r.Error)
		default:
			m.e.reports <- report{from: m, said: &r}
		}
	}
}

// again starts a child after one that died, unless that happens too often or end
// was called; it returns neither then.
func (m *minder) again(cause error) (*child, error) {
	wait, ok := m.limit.next(time.Now())
	if !ok {
		return nil, fmt.Errorf("muster-quorum %s died %d times within a minute, the last time with: %v",
			m.mode, maxRestarts, cause)
	}
	m.e.logger.Warn("muster-quorum "+m.mode+" died and is started again", "error", cause, "run_id", m.e.cfg.RunID)
	select {
	case <-time.After(wait):
	case <-m.kick:
	}
	m.mu.Lock()
	op := m.op
	m.mu.Unlock()
	if op == "leave" || op != "" && m.mode == "serve" {
		return nil, nil
	}
	return m.start() // with op close, to close the run
}

// end tells the child to end and waits for it; it kills it when ctx ends.
func (m *minder) end(ctx context.Context, op string) error {
	m.mu.Lock()
	m.op = op
	c := m.child
	m.mu.Unlock()
	close(m.kick)
	if c != nil {
		go c.finish(op) // one that is stopped may not read it
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		if c != nil {
			_ = c.cmd.Process.Kill()
		}
		<-m.done
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

const maxRestarts = 5

// restarts bounds how often a child is started within a minute.
type restarts struct{ at []time.Time }

// next returns how long to wait before the next start, and false if it is one too many.
func (r *restarts) next(now time.Time) (time.Duration, bool) {
	for len(r.at) > 0 && now.Sub(r.at[0]) > time.Minute {
		r.at = r.at[1:]
	}
	if len(r.at) >= maxRestarts {
		return 0, false
	}
	wait := time.Duration(0)
	if len(r.at) > 0 {
		wait = 50 * time.Millisecond << len(r.at) // up to 800 ms
	}
	r.at = append(r.at, now)
	return wait, true
}

// relay passes on what a child logs: JSON of slog, or of etcd's own logger. What etcd itself has to say
// about peers that come and go is for us, not for an operator.
//
// It returns the first line of a panic, whose stacks are for us too.
func (e *Election) relay(stderr io.Reader, pid int) (panicked string) {
	lines := bufio.NewReaderSize(stderr, pipe.MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		text := strings.TrimSpace(string(line))
		if panicked == "" && (strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ")) {
			panicked = text
		}
		switch {
		case text == "":
		case panicked != "":
			e.logger.Debug("muster-quorum: "+text, "pid", pid)
		default:
			e.relayLine(line, pid)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return panicked
		}
	}
}

func (e *Election) relayLine(line []byte, pid int) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		e.logger.Warn("muster-quorum: "+strings.TrimSpace(string(line)), "pid", pid)
		return
	}
	msg, _ := fields["msg"].(string)
	var level slog.Level
	text, _ := fields["level"].(string)
	_ = level.UnmarshalText([]byte(text))
	if _, etcd := fields["caller"]; etcd {
		level, msg = slog.LevelDebug, "etcd: "+msg
	}
	attrs := []slog.Attr{slog.Int("pid", pid)}
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains([]string{"msg", "level", "time", "ts", "caller", "stacktrace"}, k) {
			attrs = append(attrs, slog.Any(k, fields[k]))
		}
	}
	e.logger.LogAttrs(context.Background(), level, msg, attrs...)
}
