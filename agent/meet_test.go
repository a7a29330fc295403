package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/timer"
)

// A meeting is a rendezvous of nodes in this process. A round closes once every
// node that is known and has not gone has asked for it; ranks follow the order in
// which nodes were made.
type meeting struct {
	store store.Store

	mu     sync.Mutex
	nodes  []*node
	round  int
	closed bool
}

func newMeeting() *meeting { return &meeting{store: store.NewMemory(), round: -1} }

// A node is one host's handler.
type node struct {
	rendezvous.Basic
	m        *meeting
	name     string
	offset   time.Duration
	ranks    *rendezvous.Ranks
	serves   bool
	wrap     func(store.Store) store.Store // of the round's store
	nextErr  error                         // instead of a round
	changes  chan rendezvous.Change
	rounds   chan *rendezvous.Info // that this node was in
	joined   chan *rendezvous.Info // not nil while Next waits
	info     *rendezvous.Info      // of the round that it is in
	gone     bool
	left     bool // Leave was called
	shutdown bool // Shutdown was called
	answers  map[string]func(context.Context, []byte) ([]byte, error)
}

func (m *meeting) node(name string) *node {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &node{m: m, name: name, changes: make(chan rendezvous.Change, 64), rounds: make(chan *rendezvous.Info, 64)}
	m.nodes = append(m.nodes, n)
	return n
}

func (n *node) Handle(kind string, answer func(context.Context, []byte) ([]byte, error)) {
	n.answers = map[string]func(context.Context, []byte) ([]byte, error){kind: answer}
}

func (n *node) Backend() string                   { return "meeting" }
func (n *node) RunID() string                     { return "job1" }
func (n *node) UseAgentStore() bool               { return true }
func (n *node) Changes() <-chan rendezvous.Change { return n.changes }
func (n *node) CanChange() bool                   { return true }

func (n *node) Next(ctx context.Context) (*rendezvous.Info, error) {
	m := n.m
	m.mu.Lock()
	if n.nextErr != nil || m.closed {
		defer m.mu.Unlock()
		return nil, errors.Join(n.nextErr, map[bool]error{true: rendezvous.ErrClosed}[m.closed])
	}
	n.joined = make(chan *rendezvous.Info, 1)
	joined := n.joined
	n.info = nil
	m.tellOthers(n, rendezvous.Change{Kind: rendezvous.NodesWaiting, Node: n.name, Rank: -1})
	m.complete()
	m.mu.Unlock()
	select {
	case info := <-joined:
		if info == nil {
			return nil, rendezvous.ErrClosed
		}
		return info, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// tellOthers sends a change to the nodes that are in a round.
func (m *meeting) tellOthers(n *node, c rendezvous.Change) {
	for _, other := range m.nodes {
		if other != n && other.info != nil && !other.gone {
			other.changes <- c
		}
	}
}

// complete closes a round if all nodes wait for it.
func (m *meeting) complete() {
	var in []*node
	for _, n := range m.nodes {
		if n.gone {
			continue
		}
		if n.joined == nil {
			return
		}
		in = append(in, n)
	}
	m.round++
	for rank, n := range in {
		for len(n.changes) > 0 {
			<-n.changes
		}
		s := store.Prefix(fmt.Sprint("round.", m.round), m.store)
		if n.wrap != nil {
			s = n.wrap(s)
		}
		n.info = &rendezvous.Info{Round: m.round, Rank: rank, WorldSize: len(in), Store: s, JobStore: store.Prefix("job", m.store),
			MasterAddr: "192.0.2.1", MasterPort: 1, Ranks: n.ranks, ClockOffset: n.offset, Serves: n.serves}
		n.rounds <- n.info
		n.joined <- n.info
		n.joined = nil
	}
}

// remove takes a node out, and tells the others in its round.
func (m *meeting) remove(n *node, kind rendezvous.ChangeKind) {
	if n.gone {
		return
	}
	n.gone = true
	if n.info != nil {
		m.tellOthers(n, rendezvous.Change{Kind: kind, Node: n.name, Rank: n.info.Rank})
	}
	m.complete()
}

// lose is the sudden death of a node.
func (n *node) lose() {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.remove(n, rendezvous.NodeLost)
}

func (n *node) Leave(context.Context) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.left = true
	n.m.remove(n, rendezvous.NodeLeft)
	return nil
}

func (n *node) Shutdown(context.Context) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.shutdown, n.gone = true, true
	n.m.close(n)
	return nil
}

func (m *meeting) close(by *node) {
	if m.closed {
		return
	}
	m.closed = true
	m.tellOthers(by, rendezvous.Change{Kind: rendezvous.Closed, Node: by.name, Rank: -1})
	for _, n := range m.nodes {
		if n.joined != nil {
			n.joined <- nil
			n.joined = nil
		}
	}
}

// A worker of these tests connects to the socket that it has as argument, says who
// it is, and does what it is told there.
func obey(ctx context.Context, socket []byte) ([]byte, error) {
	conn, err := net.Dial("unix", string(socket))
	if err != nil {
		return nil, err
	}
	hello := hello{}
	for name, p := range map[string]*int{"RANK": &hello.Rank, "WORLD_SIZE": &hello.WorldSize, "LOCAL_RANK": &hello.LocalRank,
		"GROUP_RANK": &hello.GroupRank, "GROUP_WORLD_SIZE": &hello.GroupWorldSize, "TORCHELASTIC_RESTART_COUNT": &hello.Restarts} {
		if _, err := fmt.Sscan(os.Getenv(name), p); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	hello.Host = os.Getenv("TEST_HOST")
	if err := json.NewEncoder(conn).Encode(hello); err != nil {
		return nil, err
	}
	told := make(chan string)
	go func() {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	stop := ctx.Done()
	for {
		select {
		case order := <-told:
			switch order {
			case "succeed":
				return []byte(hello.Host), nil
			case "linger": // whatever the agent says
				stop = nil
				fmt.Fprintln(conn, "lingering")
			default:
				if step, ok := strings.CutPrefix(order, "beat "); ok { // and fail
					return nil, errors.Join(beat(step), errors.New("after step "+step))
				}
				if rest, ok := strings.CutPrefix(order, "exit "); ok { // "exit 3 what goes to stderr"
					code, text, _ := strings.Cut(rest, " ")
					n, err := strconv.Atoi(code)
					if err != nil {
						return nil, err
					}
					fmt.Fprintln(os.Stderr, text)
					os.Exit(n)
				}
				return nil, errors.New(order)
			}
		case <-stop:
			os.Exit(143)
		}
	}
}

// beat tells the agent of a step, and returns when it has heard.
func beat(step string) error {
	n, err := strconv.ParseInt(step, 10, 64)
	if err != nil {
		return err
	}
	client := &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
	defer client.Close()
	return errors.Join(client.Heartbeat(n), client.Acquire("heard", time.Now().Add(time.Hour)), client.Release("heard"))
}

type hello struct {
	Host                                                            string
	Rank, WorldSize, LocalRank, GroupRank, GroupWorldSize, Restarts int
}

// lostPeer is what gloo says when the other end is gone.
const lostPeer = "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.0.2.2]:4711"

// A worker process as the test sees it.
type worker struct {
	hello
	conn net.Conn
}

// tell says what the worker is to do: succeed, or fail with a message.
func (w *worker) tell(t *testing.T, order string) {
	t.Helper()
	if _, err := fmt.Fprintln(w.conn, order); err != nil {
		t.Errorf("worker %+v: %v", w.hello, err)
	}
}

// linger makes the worker ignore that it should stop.
func (w *worker) linger(t *testing.T) {
	t.Helper()
	w.tell(t, "linger")
	if line, err := bufio.NewReader(w.conn).ReadString('\n'); line != "lingering\n" {
		t.Errorf("worker %+v: %q, %v", w.hello, line, err)
	}
}

// stopped waits until the worker is gone.
func (w *worker) stopped() { _, _ = w.conn.Read(make([]byte, 1)) }

// A lab runs agents on several hosts.
type lab struct {
	t *testing.T
	*meeting
	socket  string
	workers map[string]chan *worker // by host
	hosts   map[string]*host
	running sync.WaitGroup
}

// A host is an agent and what it said.
type host struct {
	agent.Config
	name   string
	node   *node
	agent  *agent.Agent
	cancel context.CancelCauseFunc
	log    *lockedBuffer
	sink   *sink
	dir    string
	done   chan struct{}
	result *agent.Result
	err    error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newLab makes hosts; change may be nil.
func newLab(t *testing.T, names []string, change func(h *host)) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "lab") // short enough for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, meeting: newMeeting(), socket: filepath.Join(dir, "s"), workers: map[string]chan *worker{}, hosts: map[string]*host{}}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	var conns []net.Conn
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			w := &worker{conn: conn}
			if err := json.NewDecoder(conn).Decode(&w.hello); err != nil {
				continue // stopped before it could speak
			}
			l.workers[w.Host] <- w
		}
	}()
	for _, name := range names {
		l.workers[name] = make(chan *worker, 64)
		l.add(name, change)
	}
	t.Cleanup(func() {
		for _, h := range l.hosts {
			h.cancel(&process.SignalError{Signal: 9})
		}
		l.running.Wait()
		listener.Close()
		<-accepted
		for _, conn := range conns {
			conn.Close()
		}
		os.RemoveAll(dir)
		if t.Failed() {
			for _, name := range names {
				t.Logf("log of %s:\n%s", name, l.hosts[name].log)
			}
		}
	})
	return l
}

// add makes a host whose agent does not run yet.
func (l *lab) add(name string, change func(h *host)) {
	h := &host{name: name, log: &lockedBuffer{}, sink: &sink{}, done: make(chan struct{}), cancel: func(error) {}}
	logger := slog.New(slog.NewTextHandler(h.log, nil))
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		l.t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	run, err := logs.New(logs.Config{Dir: l.t.TempDir(), RunID: "job1", Stdout: null, Stderr: null, Logger: logger})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := errors.Join(supervisor.Close(), run.Close(false), null.Close()); err != nil {
			l.t.Error(err)
		}
	})
	h.dir = run.Dir()
	h.Config = agent.Config{
		Spec: agent.Spec{Role: "default", LocalWorldSize: 1, Func: "obey", Title: "train.py",
			Args: func(int, int) []string { return []string{l.socket} },
			Env:  func(int) map[string]string { return map[string]string{"TEST_HOST": name} }},
		Supervisor: supervisor, Logs: run, Host: name, PeerTimeout: 20 * time.Second,
		Options: agent.Options{ShutdownTimeout: 20 * time.Second, ExitBarrierTimeout: time.Minute}, Observers: records(h.sink), Logger: logger,
	}
	if change != nil {
		change(h)
	}
	l.hosts[name] = h
}

// start runs the agents of hosts, and ends their part in the rendezvous as the
// launcher does.
func (l *lab) start(names ...string) {
	l.t.Helper()
	for _, name := range names { // all are known before the first asks for a round
		h := l.hosts[name]
		if h.node == nil {
			h.node = l.node(name)
		}
	}
	for _, name := range names {
		h := l.hosts[name]
		h.Rendezvous = h.node
		a, err := agent.New(h.Config)
		if err != nil {
			l.t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(l.t.Context())
		h.cancel, h.agent = cancel, a
		l.running.Go(func() {
			h.result, h.err = a.Run(ctx)
			if h.result != nil && h.result.Left {
				_ = h.node.Leave(ctx)
			} else {
				_ = h.node.Shutdown(ctx)
			}
			close(h.done)
		})
	}
}

// patience bounds every wait for what should happen.
const patience = 2 * time.Minute

// worker returns the next worker that starts on a host.
func (l *lab) worker(host string) *worker {
	l.t.Helper()
	select {
	case w := <-l.workers[host]:
		return w
	case <-l.hosts[host].done:
		l.t.Fatalf("the agent of %s has ended: %+v, %v", host, l.hosts[host].result, l.hosts[host].err)
	case <-time.After(patience):
		l.t.Fatalf("no worker starts on %s", host)
	}
	return nil
}

// all returns the next worker of each host.
func (l *lab) all(hosts ...string) map[string]*worker {
	l.t.Helper()
	workers := map[string]*worker{}
	for _, host := range hosts {
		workers[host] = l.worker(host)
	}
	return workers
}

// ended waits for an agent and returns how it ended.
func (l *lab) ended(name string) (*agent.Result, error) {
	l.t.Helper()
	h := l.hosts[name]
	select {
	case <-h.done:
	case <-time.After(patience):
		l.t.Fatalf("the agent of %s does not end", name)
	}
	return h.result, h.err
}

// succeeds checks that agents end in success.
func (l *lab) succeeds(names ...string) {
	l.t.Helper()
	for _, name := range names {
		if r, err := l.ended(name); err != nil || r.IsFailed() {
			l.t.Errorf("%s: %+v, %v, want success", name, r, err)
		}
	}
}

// awaitKey waits until a key of the agents is set.
func (l *lab) awaitKey(key string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	if err := l.store.Wait(ctx, key); err != nil {
		l.t.Fatalf("%s: %v", key, err)
	}
}

func (h *host) attempts() []string {
	dirs, err := filepath.Glob(filepath.Join(h.dir, "attempt_*"))
	if err != nil {
		return []string{err.Error()}
	}
	for i := range dirs {
		dirs[i] = filepath.Base(dirs[i])
	}
	slices.Sort(dirs)
	return dirs
}
