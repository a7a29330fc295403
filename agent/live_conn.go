package agent

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/files/tempdir"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/internal/wire/admit"
)

// Variables by which a worker finds its agent for live changes (docs/internals/live.md).
const (
	liveSocketVar = "MUSTER_LIVE_SOCKET"
	liveIDVar     = "MUSTER_LIVE_ID"
)

const (
	liveVersion = 1
	// maxLiveLine bounds what a worker writes in one line, maxLiveHello in its first.
	maxLiveLine  = 64 << 10
	maxLiveHello = 1 << 10
	// maxUnexpected is how many connections may be open that have not said hello, besides those of
	// workers, and liveHello how long each has for it.
	maxUnexpected = 64
	liveHello     = 30 * time.Second
	// maxStep bounds the step that a worker says, and fastest how many it can do in a second.
	maxStep = 1 << 48
	fastest = 1_000_000
	// maxSocket is how long the path of a socket may be on all systems.
	maxSocket = 100
	// maxHandle bounds a handle, liveWrite how long a worker may not read, and liveQueue how many
	// messages wait for it.
	maxHandle = 4096
	liveWrite = 5 * time.Second
	liveQueue = 64
)

// A liveMessage is one line between a worker and its agent; docs/internals/live.md says what each type
// means.
type liveMessage struct {
	Type    string `json:"type"`
	Version int    `json:"version,omitempty"`
	ID      string `json:"id,omitempty"`
	live.Said

	Urgent bool   `json:"urgent"`
	At     int64  `json:"at"`
	Reason string `json:"reason"`

	*liveMembers
}

// liveMembers is what a worker learns of a new membership.
type liveMembers struct {
	UUID    int64             `json:"uuid"`
	Rank    int               `json:"rank"`
	World   int               `json:"world"`
	Handles []string          `json:"handles"`
	Steps   []int64           `json:"steps"`
	Source  int               `json:"source"`
	Joined  []int             `json:"joined"`
	Groups  [][]int           `json:"groups,omitempty"`
	Env     map[string]string `json:"env"`
	Timeout float64           `json:"timeout"` // seconds
}

// liveWorkers are this host's workers as far as they take part in live changes: their
// connections, and what they said last.
type liveWorkers struct {
	log      *slog.Logger
	dir      string
	random   string
	listener *net.UnixListener
	wg       sync.WaitGroup

	mu      sync.Mutex // guards the rest
	closed  bool
	conns   map[net.Conn]bool   // false: it has not said hello
	silent  int                 // how many have not
	workers map[int]*liveWorker // by local rank: those that were started last
	host    live.Host           // the same, as far as decisions go
	starts  int                 // of workers, for their IDs, which no other host has
	change  int                 // the last change of this host's members, from 1
	over    bool                // the training has ended
	news    chan struct{}       // closed, and replaced, when a worker has said something

	step   int64     // that of the last membership, which began then
	stepAt time.Time // zero: there was none

	malformed, unexpected admit.Tally
}

// A liveWorker is one worker process. The lock of liveWorkers guards it.
type liveWorker struct {
	live.Worker
	id    string
	ended bool // and not only hung up
	conn  net.Conn
	lines chan []byte // to it, in order; closed by serve
}

// openLive listens for workers.
func openLive(log *slog.Logger) (*liveWorkers, error) {
	parent := tempdir.Find()
	if len(parent)+len("/muster-live-4294967295/live") > maxSocket {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "muster-live-")
	if err != nil {
		return nil, fmt.Errorf("a directory for the socket of live changes: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "live"), Net: "unix"})
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("the socket of live changes: %w", err)
	}
	w := &liveWorkers{log: log, dir: dir, random: rand.Text(), listener: l, conns: map[net.Conn]bool{},
		workers: map[int]*liveWorker{}, host: live.Host{}, change: 1, news: make(chan struct{})}
	w.wg.Go(w.accept)
	return w, nil
}

func (w *liveWorkers) path() string { return w.listener.Addr().String() }

func (w *liveWorkers) close() {
	w.listener.Close()
	w.mu.Lock()
	w.closed = true
	for conn := range w.conns {
		conn.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
	os.RemoveAll(w.dir)
}

func (w *liveWorkers) accept() {
	for {
		conn, err := w.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // short of descriptors, for example
			continue
		}
		w.mu.Lock()
		if w.closed || w.silent >= maxUnexpected+w.silentWorkers() {
			conn.Close()
		} else {
			w.conns[conn] = false
			w.silent++
			w.wg.Go(func() { w.serve(conn) })
		}
		w.mu.Unlock()
	}
}

// silentWorkers is how many workers have still to say hello. The caller holds mu.
func (w *liveWorkers) silentWorkers() (n int) {
	for _, x := range w.workers {
		if !x.Heard && !x.Gone {
			n++
		}
	}
	return n
}

// serve reads what one worker says.
func (w *liveWorkers) serve(conn net.Conn) {
	var x *liveWorker
	defer func() {
		conn.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.conns[conn] {
			w.silent--
		}
		delete(w.conns, conn)
		if x != nil {
			x.Gone = true
			close(x.lines)
			x.lines = nil
			w.tell()
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(liveHello))
	lines := bufio.NewReaderSize(conn, maxLiveHello)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			if err != io.EOF && !errors.Is(err, net.ErrClosed) {
				w.log.Debug("live: a worker's connection has ended", "error", err)
			}
			return
		}
		m := &liveMessage{}
		if err := json.Unmarshal(line, m); err != nil || len(m.Handle) > maxHandle || !w.plausible(x, &m.Said) {
			w.malformed.Warn(w.log, "live: a worker sent an invalid message; it takes no part",
				"lines", "line", fmt.Sprintf("%.100q", line))
			return
		}
		if x == nil {
			if x = w.hello(conn, m); x == nil {
				return
			}
			_ = conn.SetReadDeadline(time.Time{})
			lines = bufio.NewReaderSize(lines, maxLiveLine)
			continue
		}
		w.heard(x, m)
	}
}

// hello finds the worker that has connected.
func (w *liveWorkers) hello(conn net.Conn, m *liveMessage) *liveWorker {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.workers {
		if m.Type == "hello" && m.ID == x.id && !x.Heard && m.Version == liveVersion {
			w.conns[conn] = true
			w.silent--
			x.conn, x.Heard, x.lines = conn, true, make(chan []byte, liveQueue)
			x.Size = max(m.Size, 1)
			lines := x.lines
			w.wg.Go(func() { write(conn, lines) })
			return x
		}
	}
	w.unexpected.Warn(w.log,
		"live: a process tried to join that is not a worker of this agent or speaks another version",
		"processes", "type", m.Type, "version", m.Version)
	return nil
}

// plausible reports whether a worker can be at a step, and know of a membership.
func (w *liveWorkers) plausible(x *liveWorker, m *live.Said) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := int64(maxStep)
	if x != nil && x.Member && !w.stepAt.IsZero() {
		most = min(most, w.step+int64(fastest*(1+time.Since(w.stepAt).Seconds())))
	}
	return m.Step >= -1 && m.Step <= most && (x == nil || x.Knows(m))
}

// reached says at which step a membership begins, and returns whether there was one before.
func (w *liveWorkers) reached(step int64) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	again = !w.stepAt.IsZero()
	w.step, w.stepAt = step, time.Now()
	return again
}

func (w *liveWorkers) heard(x *liveWorker, m *liveMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.Hear(m.Type, &m.Said)
	w.over = w.over || m.Type == "end" && x.Member
	w.tell()
}

// begin says that workers start that were not kept.
func (w *liveWorkers) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = false
}

// end says that the training has ended.
func (w *liveWorkers) end() { w.update(func() { w.over = true }) }

// update changes what mu guards, and wakes who waits.
func (w *liveWorkers) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.tell()
}

// isOver reports whether the training has ended.
func (w *liveWorkers) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// tell wakes who waits. The caller holds mu.
func (w *liveWorkers) tell() {
	close(w.news)
	w.news = make(chan struct{})
}

// env is what a worker that is about to start gets.
func (w *liveWorkers) env(localRank int) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts++
	x := &liveWorker{id: fmt.Sprintf("%s.%d", w.random, w.starts)}
	w.workers[localRank], w.host[localRank] = x, &x.Worker
	return map[string]string{liveSocketVar: w.path(), liveIDVar: x.id}
}

// ended says that a worker has ended.
func (w *liveWorkers) ended(localRank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.workers[localRank]; x != nil {
		x.Gone, x.ended = true, true
		w.tell()
	}
}

// forget says that nobody takes the place of a worker that has ended.
func (w *liveWorkers) forget(localRank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.workers, localRank)
	delete(w.host, localRank)
	w.tell()
}

// working leaves out of processes, by local rank, those that have ended, and those that are no
// members and wait until they are.
func (w *liveWorkers) working(pids map[int]int) map[int]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(pids, func(i, _ int) bool {
		x := w.workers[i]
		return x == nil || x.ended || x.Ready != nil && !x.Member
	})
	return pids
}

// lastChange is the last change of this host's members.
func (w *liveWorkers) lastChange() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.change
}

// each returns the workers for which is returns true, by local rank.
func (w *liveWorkers) each(is func(*liveWorker) bool) map[int]*liveWorker {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[int]*liveWorker{}
	for i, x := range w.workers {
		if is(x) {
			found[i] = x
		}
	}
	return found
}

// isMember reports whether a worker was one of the last membership.
func (w *liveWorkers) isMember(localRank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers[localRank] != nil && w.workers[localRank].Member
}

// left are the workers that have not ended.
func (w *liveWorkers) left() map[int]*liveWorker {
	return w.each(func(x *liveWorker) bool { return !x.Gone })
}

// members are the workers of the last membership that are still there.
func (w *liveWorkers) members() map[int]*liveWorker {
	return w.each(func(x *liveWorker) bool { return x.Member && !x.Gone })
}

// send sends to workers. It does not wait: one that does not read is dropped.
func (w *liveWorkers) send(to map[int]*liveWorker, message func(localRank int) *liveMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range to {
		line, err := json.Marshal(message(i))
		if err != nil {
			panic(err) // there is nothing in it that JSON cannot say
		}
		if x.lines == nil {
			continue // it is gone
		}
		select {
		case x.lines <- append(line, '\n'):
		default:
			x.conn.Close() // serve says that it is gone
		}
	}
}

// write writes lines to a worker. After an error serve drops them.
func write(conn net.Conn, lines <-chan []byte) {
	for line := range lines {
		_ = conn.SetWriteDeadline(time.Now().Add(liveWrite))
		if _, err := conn.Write(line); err != nil {
			conn.Close()
		}
	}
}

// await waits until done, called with mu held, returns true, or ctx ends.
func (w *liveWorkers) await(ctx context.Context, done func() bool) error {
	for {
		w.mu.Lock()
		over, news := done(), w.news
		w.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
