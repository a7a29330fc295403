// Package election makes one of a run's agents the holder of its rendezvous, and another
// one when that is lost: each agent asks who leads, serves the rendezvous if it does,
// connects to the leader if not, and asks again when that one is lost.
//
// What elects is etcd: a cluster that is there already, or members that the agents
// of some hosts run themselves. All of etcd is in a program of its own, muster-quorum,
// which this package starts as a child and speaks to over pipes (package pipe has what
// they say, and the settings). So an agent without an election does not pay for etcd at its
// start. A child that dies is started again; if this process dies, however it does, its
// children notice, give the leadership back at once, and end.
//
// The package does not carry the rendezvous: that is package server's business.
package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wire/pipe"
)

// ErrClosed is returned by Leader once an agent has said that the job ended. A
// cluster remembers that for 10 minutes, for agents that had entered the election before.
// An agent that enters it later begins another job.
var ErrClosed = errors.New("the run was closed")

// ErrStopped is returned by Leader after Close.
var ErrStopped = errors.New("this agent left the election")

// Config says how to elect.
type Config struct {
	// Elect is for what etcd's members are asked. Start sets its ID. TTL is how long a host
	// that vanished stays the leader, default 5s; one whose agent died is replaced within
	// milliseconds.
	pipe.Elect
	// Member is the member that this host runs; nil if it runs none. What Elect says of the
	// run, of TLS and of the token holds for it too.
	Member *pipe.Serve

	// Program is muster-quorum's path. Default: beside this program, then in PATH.
	Program string
	// Beat is called four times within the TTL, and returns if this agent is well: otherwise it does
	// not lead. It reports whether another should lead if there is one that can. Default: never.
	Beat func() (yield bool)
	// OnWaiting is told for what the election waits, in words, whenever that changes,
	// and "" when it waits no more. One call at a time; it must not block.
	OnWaiting func(text string)
	// Logger gets what the children say too. Default slog.Default().
	Logger *slog.Logger
}

// An Election is this agent's part in it. Its methods may be called concurrently.
// The caller that started it closes it.
type Election struct {
	cfg     Config
	program string
	logger  *slog.Logger
	forks   chan func() // to the thread that the children are tied to
	bridge  *minder
	member  *minder // nil if this host runs none
	reports chan report
	minders sync.WaitGroup
	told    sync.WaitGroup
	threads sync.WaitGroup

	lease chan bool // has room for one: the newest of Lease

	mu      sync.Mutex // guards what follows
	leader  *pipe.Leader
	gone    chan struct{} // closed once leader is gone
	changed chan struct{} // closed at the next change of leader and err
	err     error         // why there will be no leader any more
	closed  chan struct{} // made by the first Close, closed when it is over
	closing error         // what Close returned
}

// Start begins to stand for election. It returns when the children run, without
// waiting for a leader; ctx is for that time only. It returns an error if the
// configuration is wrong, with all that is, or the program cannot be run.
func Start(ctx context.Context, cfg Config) (*Election, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := checkPairs(&cfg); err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	cfg.ID = strconv.FormatUint(rand.Uint64(), 36)
	cfg.TTL = cmp.Or(cfg.TTL, pipe.Millis(5*time.Second))
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.OnWaiting == nil {
		cfg.OnWaiting = func(string) {}
	}
	program, err := findProgram(cfg.Program)
	if err != nil {
		return nil, err
	}
	e := &Election{
		cfg: cfg, program: program, logger: cfg.Logger,
		forks: make(chan func()), reports: make(chan report), changed: make(chan struct{}), lease: make(chan bool, 1),
	}
	e.threads.Go(e.fork)
	e.bridge = newMinder(e, "elect", &cfg.Elect)
	minders := []*minder{e.bridge}
	if cfg.Member != nil {
		e.member = newMinder(e, "serve", cfg.member())
		minders = []*minder{e.member, e.bridge}
	}
	if err := e.begin(minders); err != nil {
		return nil, err
	}
	return e, nil
}

// begin starts the children, all or none.
func (e *Election) begin(minders []*minder) error {
	e.told.Go(e.listen)
	e.minders.Go(e.beat)
	var failed error
	for _, m := range minders {
		var c *child
		if failed == nil {
			c, failed = m.start()
		}
		e.minders.Go(func() { m.mind(c) })
	}
	if failed != nil {
		_ = e.Close(context.Background(), false)
	}
	return failed
}

// checkPairs reports options that were given without those that go with them.
func checkPairs(cfg *Config) error {
	var errs []error
	if (cfg.Cert == "") != (cfg.Key == "") {
		errs = append(errs, errors.New("a certificate and its key go together"))
	}
	if (cfg.User == "") != (cfg.Password == "") {
		errs = append(errs, errors.New("a user and a password go together"))
	}
	return errors.Join(errs...)
}

// member returns the settings of this host's member.
func (cfg *Config) member() *pipe.Serve {
	m := *cfg.Member
	m.RunID, m.TTL = cfg.RunID, cfg.TTL
	m.CACert, m.Cert, m.Key, m.Token = cfg.CACert, cfg.Cert, cfg.Key, cfg.Token
	return &m
}

// Leader returns who leads, once somebody does. It returns ErrClosed if the run
// was closed, an error that says what to do if there is no point in waiting on,
// ErrStopped after Close if there was neither, and the cause of ctx when that ends.
func (e *Election) Leader(ctx context.Context) (pipe.Leader, error) {
	for {
		e.mu.Lock()
		leader, err, changed := e.leader, e.err, e.changed
		e.mu.Unlock()
		switch {
		case err != nil:
			return pipe.Leader{}, err
		case leader != nil:
			return *leader, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return pipe.Leader{}, context.Cause(ctx)
		}
	}
}

// Lost returns a channel that is closed once the leader of a term is known to be
// gone. If that was this agent it has to stop to serve at once: another may lead.
func (e *Election) Lost(term int64) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader != nil && e.leader.Term == term {
		return e.gone
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Lease tells this agent, while it leads, that its lease has run out because etcd does
// not answer (false), so that another may lead beside it, or is good again (true).
func (e *Election) Lease() <-chan bool { return e.lease }

// Close leaves the election, or, with done, tells all agents that the job has
// ended; then it ends the children. It takes milliseconds while all members answer, and a
// few seconds at most; when ctx ends first it kills them. It returns an error if
// etcd could not be told, which then knows after the TTL. A second call waits for
// the first and returns its error.
func (e *Election) Close(ctx context.Context, done bool) error {
	e.mu.Lock()
	if e.closed != nil {
		closed := e.closed
		e.mu.Unlock()
		<-closed
		return e.closing
	}
	e.closed = make(chan struct{})
	e.mu.Unlock()
	op := "leave"
	if done {
		op = "close"
	}
	errs := []error{e.bridge.end(ctx, op)}
	if e.member != nil {
		errs = append(errs, e.member.end(ctx, op))
	}
	// In this order: the minders send reports, and have children forked; the thread's end would kill the children.
	e.minders.Wait()
	close(e.reports)
	e.told.Wait()
	close(e.forks)
	e.threads.Wait()
	e.fail(ErrStopped)
	e.closing = errors.Join(errs...)
	close(e.closed)
	return e.closing
}
