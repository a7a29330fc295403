// Package link connects an agent with its workers for live changes (docs/internals/live.md): which of them
// are there, what each has said last, and messages to them. What follows from that the agent decides.
package link

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
	SocketVar = "MUSTER_LIVE_SOCKET"
	IDVar     = "MUSTER_LIVE_ID"
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
	// maxHandle bounds a handle, liveWrite how long a worker may not read, and liveQueue how many
	// messages wait for it.
	maxHandle = 4096
	liveWrite = 5 * time.Second
	liveQueue = 64
)

// A Message is one line between a worker and its agent; docs/internals/live.md says what each type
// means.
type Message struct {
	Type    string `json:"type"`
	Version int    `json:"version,omitempty"`
	ID      string `json:"id,omitempty"`
	live.Said

	Urgent bool   `json:"urgent"`
	At     int64  `json:"at"`
	Reason string `json:"reason"`

	*Members
}

// Members is what a worker learns of a new membership.
type Members struct {
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

// A Link is this host's workers as far as they take part in live changes: their
// connections, and what they said last.
//
// One goroutine accepts. Each connection has one that reads (serve) and, after hello, one that writes.
// Close sets closed with the lock held, under which accept starts the readers: none begins once it waits.
type Link struct {
	log      *slog.Logger
	dir      string
	random   string
	listener *net.UnixListener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards the rest
	closed bool
	conns  map[net.Conn]bool // false: it has not said hello
	silent int               // how many have not
	starts int               // of workers, for their IDs, which no other host has
	state  State
	news   chan struct{} // closed, and replaced, when a worker has said something

	step   int64     // that of the last membership, which began then
	stepAt time.Time // zero: there was none

	malformed, unexpected admit.Tally
}

// A State is what is known of the workers. Look, Update and Await show it with the Link's lock held.
type State struct {
	Workers map[int]*Worker // by local rank: those that were started last
	Host    live.Host       // the same, as far as decisions go
	Change  int             // the last change of this host's members, from 1
	Over    bool            // the training has ended
}

// A Worker is one worker process. The lock of Link guards it.
type Worker struct {
	live.Worker
	id    string
	ended bool // and not only hung up
	conn  net.Conn
	Lines chan []byte // to it, in order; closed by serve, with the lock held under which Send sends
}

// New returns a Link that nobody can connect to.
func New(s State) *Link {
	s.Host = live.Host{}
	for i, x := range s.Workers {
		s.Host[i] = &x.Worker
	}
	return &Link{state: s, news: make(chan struct{})}
}

// Listen listens for workers.
func Listen(log *slog.Logger) (*Link, error) {
	dir, err := os.MkdirTemp(tempdir.ForSocket(), "muster-live-")
	if err != nil {
		return nil, fmt.Errorf("a directory for the socket of live changes: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "live"), Net: "unix"})
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("the socket of live changes: %w", err)
	}
	w := New(State{Workers: map[int]*Worker{}, Change: 1})
	w.log, w.dir, w.random, w.listener, w.conns = log, dir, rand.Text(), l, map[net.Conn]bool{}
	w.wg.Go(w.accept)
	return w, nil
}

// Path is where the socket is, in a directory that Close removes.
func (w *Link) Path() string { return w.listener.Addr().String() }

// Close ends the connections.
func (w *Link) Close() {
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

func (w *Link) accept() {
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
func (w *Link) silentWorkers() (n int) {
	for _, x := range w.state.Workers {
		if !x.Heard && !x.Gone {
			n++
		}
	}
	return n
}

// serve reads what one worker says.
func (w *Link) serve(conn net.Conn) {
	var x *Worker
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
			close(x.Lines)
			x.Lines = nil
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
		m := &Message{}
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

// hello finds the worker that has connected. An ID is good for one connection: what a worker starts inherits
// its environment, and would otherwise speak in its place.
func (w *Link) hello(conn net.Conn, m *Message) *Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.state.Workers {
		if m.Type == "hello" && m.ID == x.id && !x.Heard && m.Version == liveVersion {
			w.conns[conn] = true
			w.silent--
			x.conn, x.Heard, x.Lines = conn, true, make(chan []byte, liveQueue)
			x.Size = max(m.Size, 1)
			lines := x.Lines
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
func (w *Link) plausible(x *Worker, m *live.Said) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := int64(maxStep)
	if x != nil && x.Member && !w.stepAt.IsZero() {
		most = min(most, w.step+int64(fastest*(1+time.Since(w.stepAt).Seconds())))
	}
	return m.Step >= -1 && m.Step <= most && (x == nil || x.Knows(m))
}

// Reached says at which step a membership begins, and returns whether there was one before.
func (w *Link) Reached(step int64) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	again = !w.stepAt.IsZero()
	w.step, w.stepAt = step, time.Now()
	return again
}

func (w *Link) heard(x *Worker, m *Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.Hear(m.Type, &m.Said)
	w.state.Over = w.state.Over || m.Type == "end" && x.Member
	w.tell()
}

// Look shows the state. The channel is closed when there is news.
func (w *Link) Look(at func(*State)) (news <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at(&w.state)
	return w.news
}

// Update changes the state, and wakes who waits.
func (w *Link) Update(change func(*State)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.state)
	w.tell()
}

// IsOver reports whether the training has ended.
func (w *Link) IsOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Over
}

// tell wakes who waits. The caller holds mu.
func (w *Link) tell() {
	close(w.news)
	w.news = make(chan struct{})
}

// Env is what a worker that is about to start gets.
func (w *Link) Env(localRank int) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts++
	x := &Worker{id: fmt.Sprintf("%s.%d", w.random, w.starts)}
	w.state.Workers[localRank], w.state.Host[localRank] = x, &x.Worker
	return map[string]string{SocketVar: w.Path(), IDVar: x.id}
}

// Ended says that a worker has ended.
func (w *Link) Ended(localRank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.state.Workers[localRank]; x != nil {
		x.Gone, x.ended = true, true
		w.tell()
	}
}

// Forget says that nobody takes the place of a worker that has ended.
func (w *Link) Forget(localRank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.state.Workers, localRank)
	delete(w.state.Host, localRank)
	w.tell()
}

// Working leaves out of processes, by local rank, those that have ended, and those that are no
// members and wait until they are.
func (w *Link) Working(pids map[int]int) map[int]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(pids, func(i, _ int) bool {
		x := w.state.Workers[i]
		return x == nil || x.ended || x.Ready != nil && !x.Member
	})
	return pids
}

// LastChange is the last change of this host's members.
func (w *Link) LastChange() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Change
}

// Each returns the workers for which is returns true, by local rank.
func (w *Link) Each(is func(*Worker) bool) map[int]*Worker {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[int]*Worker{}
	for i, x := range w.state.Workers {
		if is(x) {
			found[i] = x
		}
	}
	return found
}

// Left are the workers that have not ended.
func (w *Link) Left() map[int]*Worker {
	return w.Each(func(x *Worker) bool { return !x.Gone })
}

// Members are the workers of the last membership that are still there.
func (w *Link) Members() map[int]*Worker {
	return w.Each(func(x *Worker) bool { return x.Member && !x.Gone })
}

// Send sends to workers. It does not wait: one that does not read is dropped.
func (w *Link) Send(to map[int]*Worker, message func(localRank int) *Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range to {
		line, err := json.Marshal(message(i))
		if err != nil {
			panic(err) // there is nothing in it that JSON cannot say
		}
		if x.Lines == nil {
			continue // it is gone
		}
		select {
		case x.Lines <- append(line, '\n'):
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

// Await waits until done returns true, or ctx ends.
func (w *Link) Await(ctx context.Context, done func(*State) bool) error {
	for {
		over := false
		news := w.Look(func(s *State) { over = done(s) })
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
