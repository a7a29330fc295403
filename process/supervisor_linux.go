package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/cgroup"
)

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	// Guard starts the guard process. The program's main function must then
	// call GuardMain before anything else.
	Guard bool
	// ReapOrphans reaps processes that the kernel gives to this one because
	// their parents ended. The program must then start no children of its own
	// while the Supervisor is open, or not need their exit statuses.
	ReapOrphans bool
	// NoCgroup keeps workers in the program's own cgroup.
	NoCgroup bool
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// A Supervisor starts groups. Its methods may be called concurrently.
type Supervisor struct {
	cfg        SupervisorConfig
	log        *slog.Logger
	forks      chan func() // run by the thread that forks
	idle       chan struct{}
	childEnded chan os.Signal // nil unless ReapOrphans
	reaper     chan struct{}
	cgroup     *cgroup.Dir // holds the workers' groups; nil without

	// forking is held from a fork until the child is known, so that nobody takes
	// it for an adopted one.
	forking sync.Mutex

	mu     sync.Mutex // guards the rest
	closed bool
	groups map[*Group]struct{}
	starts int
	known  map[int]bool // pids of live workers and the guard
	guard  *guard       // nil until the first start
}

// NewSupervisor makes the program a child subreaper and gets ready to fork.
// Descriptors above 2 that the program has inherited become close-on-exec. The
// caller must Close it. Where no cgroup can be made, what workers leave behind
// is found by other means.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become a child subreaper: %w", err)
	}
	sealDescriptors()
	s := &Supervisor{
		cfg:    cfg,
		log:    cfg.Logger,
		forks:  make(chan func()),
		idle:   make(chan struct{}),
		groups: map[*Group]struct{}{},
		known:  map[int]bool{},
	}
	go s.forkThread()
	if cfg.ReapOrphans {
		s.reaper = make(chan struct{})
		s.childEnded = make(chan os.Signal, 1)
		signal.Notify(s.childEnded, syscall.SIGCHLD)
		go func() {
			defer close(s.reaper)
			for range s.childEnded {
				s.reapOrphans()
			}
		}()
	}
	if !cfg.NoCgroup {
		dir, err := cgroup.Make(fmt.Sprintf("muster-%d", os.Getpid()))
		if err != nil {
			s.log.Debug("no cgroup for the workers", "error", err)
		}
		s.cgroup = dir
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

func (s *Supervisor) onForkThread(f func()) {
	done := make(chan struct{})
	s.forks <- func() { defer close(done); f() }
	<-done
}

// Close kills the groups that still run, ends the guard and removes the cgroup.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var open []*Group
	for g := range s.groups {
		open = append(open, g)
	}
	s.mu.Unlock()
	for _, g := range open {
		_ = g.Close(syscall.SIGKILL, 0)
	}
	var errs []error
	if s.childEnded != nil {
		signal.Stop(s.childEnded)
		close(s.childEnded)
		<-s.reaper
		s.reapOrphans()
	}
	if s.cgroup != nil {
		errs = append(errs, s.cgroup.Remove())
	}
	if guard := s.currentGuard(); guard != nil {
		guard.stop()
	}
	close(s.forks)
	<-s.idle
	return errors.Join(errs...)
}

// Start starts one worker per local rank, in their order. If one cannot be
// started, those before it are killed and the error is a *StartError.
// Source: start_processes in multiprocessing/__init__.py.
func (s *Supervisor) Start(cfg Config) (*Group, error) {
	g, err := s.start(cfg)
	if cfg.Logs != nil {
		err = errors.Join(err, cfg.Logs.Started())
	}
	if err != nil {
		if g != nil {
			_ = g.Close(syscall.SIGKILL, 0)
		}
		return nil, err
	}
	return g, nil
}

func (s *Supervisor) start(cfg Config) (*Group, error) {
	if cfg.Logger == nil {
		cfg.Logger = s.log
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Env == nil {
		cfg.Env = os.Environ()
	}
	n := len(cfg.Args)
	g := &Group{
		cfg: cfg, sup: s, log: cfg.Logger,
		pids: make(map[int]int, n),
		result: &Result{
			Exits: make(map[int]Exit, n), Failures: map[int]Exit{},
			Stdouts: make(map[int]string, n), Stderrs: make(map[int]string, n),
		},
		done:  make(chan struct{}),
		exits: make(chan *worker),
		gone:  make(chan *worker),
		stops: make(chan stopRequest),
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.starts++
	number := s.starts
	s.groups[g] = struct{}{}
	s.mu.Unlock()

	var startErr error
	s.onForkThread(func() {
		// After the workers, which should not have to wait for it. Until it
		// runs their parent-death signals are there.
		defer s.ensureGuard(g)
		for i := range n {
			w, err := g.fork(i, number)
			if err != nil {
				startErr = err
				return
			}
			g.workers = append(g.workers, w)
			g.pids[i] = w.pid
		}
	})
	for _, w := range g.workers {
		go g.await(w)
	}
	go func() {
		g.run()
		s.mu.Lock()
		delete(s.groups, g)
		s.mu.Unlock()
	}()
	return g, startErr
}

// fork starts one worker. It runs on the fork thread.
func (g *Group) fork(rank, number int) (*worker, error) {
	cfg, s := &g.cfg, g.sup
	overlay := cfg.Envs[rank]
	stdout, stderr := os.Stdout, os.Stderr
	if cfg.Logs != nil {
		sink := cfg.Logs.Sink(rank)
		stdout, stderr = sink.Stdout, sink.Stderr
		g.result.Stdouts[rank], g.result.Stderrs[rank] = sink.StdoutPath, sink.StderrPath
	}
	w := &worker{rank: rank, cut: make(chan struct{}), tag: tagOf(cfg.Env, overlay)}
	path, argv := cfg.Entrypoint, append([]string{cfg.Entrypoint}, cfg.Args[rank]...)
	files := []uintptr{0, stdout.Fd(), stderr.Fd()}
	env := environ(cfg.Env, overlay)
	if cfg.Func != "" {
		var err error
		if w.call, err = newCall(cfg.Func, cfg.Args[rank]); err != nil {
			return nil, &StartError{rank, cfg.Func, err}
		}
		path, argv = selfPath, []string{os.Args[0]}
		env = append(env, funcVar+"="+cfg.Func)
		files = append(files, w.call.childArgs.Fd(), w.call.childResult.Fd())
	} else {
		var err error
		if path, err = lookPath(path, env); err != nil {
			return nil, &StartError{rank, cfg.Entrypoint, err}
		}
	}
	pidfd := -1
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	}
	if s.cgroup != nil {
		dir, err := s.cgroup.Make(fmt.Sprintf("%d.%d", number, rank))
		if err != nil {
			g.log.Debug("no cgroup for a worker", "local_rank", rank, "error", err)
		} else {
			w.cgroup = dir
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, dir.FD
		}
	}
	w.oomBefore, w.started = readOOM(w.cgroup), sinceBoot()
	restore, err := setAffinity(cfg.CPUs[rank])
	if err != nil {
		return nil, &StartError{rank, cfg.Entrypoint, err}
	}
	s.forking.Lock()
	defer s.forking.Unlock()
	pid, _, err := syscall.StartProcess(path, argv, attr)
	restore()
	if w.call != nil {
		w.call.started(err == nil)
	}
	if err != nil {
		if w.cgroup != nil {
			_ = w.cgroup.Remove()
		}
		return nil, &StartError{rank, path, explainExec(path, err)}
	}
	w.pid = pid
	if st, err := readStat(pid); err == nil {
		w.start = st.start
	}
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(pid, &status, 0, nil)
			return nil, &StartError{rank, path, fmt.Errorf("pidfd: %w (muster needs Linux 5.4 or later)", err)}
		}
	}
	_ = unix.SetNonblock(pidfd, true)
	w.pidfd = os.NewFile(uintptr(pidfd), fmt.Sprintf("pidfd of worker %d", rank))
	s.remember(w)
	return w, nil
}

func (s *Supervisor) remember(w *worker) {
	s.mu.Lock()
	s.known[w.pid] = true
	s.mu.Unlock()
}

// ensureGuard starts the guard the first time, if there is to be one, and tells
// it of the workers of g. It runs on the fork thread.
func (s *Supervisor) ensureGuard(g *Group) {
	if !s.cfg.Guard {
		return
	}
	guard := s.currentGuard()
	if guard == nil {
		s.forking.Lock()
		var err error
		if guard, err = startGuard(); err == nil {
			s.mu.Lock()
			s.known[guard.pid] = true
			s.guard = guard
			s.mu.Unlock()
		}
		s.forking.Unlock()
		if err != nil {
			s.cfg.Guard = false
			s.log.Warn("no guard: if this process is killed, processes that its workers started may stay", "error", err)
			return
		}
		if s.cgroup != nil {
			guard.tell('c', s.cgroup.Path)
		}
	}
	for _, w := range g.workers {
		guard.tell('w', fmt.Sprintf("%d %d %s", w.pid, w.start, w.tag))
	}
}

func (s *Supervisor) currentGuard() *guard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.guard
}

// forget is called when nothing is left of a worker.
func (s *Supervisor) forget(w *worker) {
	s.mu.Lock()
	delete(s.known, w.pid)
	s.mu.Unlock()
	if guard := s.currentGuard(); guard != nil {
		guard.tell('x', fmt.Sprint(w.pid))
	}
	if w.cgroup != nil {
		if err := w.cgroup.Remove(); err != nil {
			s.log.Debug("remove cgroup", "error", err)
		}
	}
}

func (s *Supervisor) isKnown(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[pid]
}

// tagOf returns the entry of a worker's environment by which its descendants can
// be recognised: the error file, which no other worker has.
func tagOf(base []string, overlay map[string]string) string {
	if path := overlay[errorFileVar]; path != "" {
		return errorFileVar + "=" + path
	}
	return ""
}
