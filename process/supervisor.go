package process

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/muster-run/muster/internal/host/children"
	"github.com/muster-run/muster/logs"
)

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	// Guard starts the guard process, which is the program started again. A main
	// function that calls GuardMain before anything else lets it become the guard;
	// without that call there is none, and the log says so.
	Guard bool
	// WholeProgram says that the program does nothing but run these workers, as the
	// muster command does. Processes that the kernel gives to it, because their
	// parents ended, are reaped when they end. They are ended with the last worker even if
	// nothing shows whose they were, unless the program is PID 1 or had children before the
	// Supervisor: then only those that have a worker's variables. Descriptors that the program
	// was started with are kept from the workers. The program must start no children of its own
	// while the Supervisor is open, except for those that muster's packages start (they are
	// told apart). Without it only those are ended and reaped that are known to come from a
	// worker, and descriptors are left as they are.
	WholeProgram bool
	// NoCgroup keeps workers in the program's own cgroup. What they leave behind
	// is then found by parents, sessions and environments, as it is where no
	// cgroup can be made.
	NoCgroup bool
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// A Supervisor starts groups of workers and sees to it that nothing of them is left: while it is
// open, the program is a child subreaper, and with SupervisorConfig.Guard a second process ends the
// workers if the program is killed. A program makes one with NewSupervisor, starts any number of
// groups, and closes it when they have ended; Close kills those that have not. Its methods may be
// called concurrently.
type Supervisor struct {
	// Three kinds of goroutines meet in it: callers, the one that is tied to the fork thread,
	// and one for each group, which lives from Start until nothing is left of its workers.
	// Close ends the groups before the thread, so a caller that finds the Supervisor open
	// (under mu) and enters its group may use the thread.

	// NewSupervisor sets these, and they do not change.
	log   *slog.Logger
	guard *guard        // nil without; it has locks of its own
	forks chan func()   // what the fork thread runs; closed by Close
	idle  chan struct{} // closed when the fork thread has ended

	// NewSupervisor sets system. Later only the fork thread changes it, if the cgroup turns
	// out to be of no use, and Close when no group is left. What never changes in it, all
	// may read.
	system system

	// forking is held from a fork until the child is in known, so that nobody takes the
	// child for an adopted one. It is taken before mu.
	forking sync.Mutex

	mu     sync.Mutex // guards the rest
	closed bool       // no group is entered any more
	groups map[*Group]struct{}
	starts int          // of groups, for their numbers
	known  map[int]bool // pids of workers that are not reaped: from the fork to release
}

// NewSupervisor makes the program a child subreaper and gets ready to fork. The
// caller must Close it. A program should have one.
//
// Where no cgroup can be made and where the guard does not start, the log says
// so and other means must do.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if err := checkReentry(); err != nil {
		return nil, err
	}
	s := &Supervisor{
		log:    cfg.Logger,
		forks:  make(chan func(), 1),
		idle:   make(chan struct{}),
		groups: map[*Group]struct{}{},
		known:  map[int]bool{},
	}
	go s.forkThread()
	if err := s.open(cfg); err != nil {
		s.endForkThread()
		return nil, err
	}
	return s, nil
}

// forkThread runs forks on one thread, which lives as long as the Supervisor: a
// worker's parent-death signal fires when the thread that forked it ends.
func (s *Supervisor) forkThread() {
	defer close(s.idle)
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	for f := range s.forks {
		f()
	}
}

func (s *Supervisor) endForkThread() {
	close(s.forks)
	<-s.idle
}

// RemoveIfKilled makes the guard remove files and empty directories, given by absolute
// paths and in that order, if this program is killed before it can do so itself. Without a
// guard, or of a nil Supervisor, it does nothing.
func (s *Supervisor) RemoveIfKilled(paths ...string) {
	if s == nil {
		return
	}
	for _, path := range paths {
		s.guard.tell("f" + path)
	}
}

// Close kills the groups that still run, ends the guard and removes the cgroup. An
// error says only that the cgroup is still there, since processes are in it: some that
// SIGKILL does not end, or some that were moved there.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.idle // another call ends it
		return nil
	}
	s.closed = true
	open := slices.Collect(maps.Keys(s.groups))
	s.mu.Unlock()
	for _, g := range open {
		g.Close(syscall.SIGKILL, 0)
	}
	err := s.shut()
	s.endForkThread()
	return err
}

var errClosed = errors.New("process: supervisor is closed")

// Start starts one worker per local rank, in their order. If one cannot be
// started, those before it are killed and the error is a *StartError; a Config
// that makes no sense is an error that lists everything wrong with it, and
// nothing is started then.
// Source: start_processes in multiprocessing/__init__.py.
func (s *Supervisor) Start(cfg Config) (*Group, error) {
	if a, ok := cfg.Logs.(*logs.Attempt); ok && a == nil {
		return nil, errors.New("process: Logs is a nil *logs.Attempt; leave the field unset to have no logs")
	}
	g, err := s.start(cfg)
	if cfg.Logs != nil {
		if lerr := cfg.Logs.Started(); lerr != nil {
			err = errors.Join(err, fmt.Errorf("logs: %w", lerr))
		}
	}
	if err != nil {
		if g != nil {
			g.Close(syscall.SIGKILL, 0)
		}
		return nil, err
	}
	return g, nil
}

func (s *Supervisor) start(cfg Config) (*Group, error) {
	cfg.Logger = cmp.Or(cfg.Logger, s.log)
	if cfg.Name != "" {
		cfg.Logger = cfg.Logger.With("role", cfg.Name)
	}
	if cfg.Env == nil {
		cfg.Env = os.Environ()
	}
	cfg.Stdin = cmp.Or(cfg.Stdin, os.Stdin)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g, err := newGroup(s, cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		g.watch.close()
		return nil, errClosed
	}
	s.starts++
	g.number = s.starts
	s.groups[g] = struct{}{}
	s.mu.Unlock()
	// Close waits for every group that it finds, so the fork thread is there.
	forked := make(chan error, 1)
	s.forks <- func() { forked <- g.fork() }
	err = <-forked
	go func() {
		g.run()
		s.mu.Lock()
		delete(s.groups, g)
		s.mu.Unlock()
	}()
	return g, err
}

func (s *Supervisor) remember(pid int) {
	s.mu.Lock()
	s.known[pid] = true
	s.mu.Unlock()
}

func (s *Supervisor) forget(pid int) {
	s.mu.Lock()
	delete(s.known, pid)
	s.mu.Unlock()
}

// isKnown reports whether this program has started a process, and it is nobody's
// orphan.
func (s *Supervisor) isKnown(pid int) bool {
	s.mu.Lock()
	known := s.known[pid]
	s.mu.Unlock()
	return known || children.Has(pid)
}
