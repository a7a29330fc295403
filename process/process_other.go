//go:build !linux

package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/logs"
)

// Without Linux there are no pidfds, cgroups, parent-death signals or child
// subreapers: workers are process groups, and what leaves its group is not found
// again. That serves for trying things out, not for clusters.

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	// Guard, ReapOrphans and NoCgroup have no effect on this system.
	Guard, ReapOrphans, NoCgroup bool
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// A Supervisor starts groups. Its methods may be called concurrently.
type Supervisor struct {
	log *slog.Logger

	mu     sync.Mutex // guards the rest
	closed bool
	groups map[*Group]struct{}
}

// NewSupervisor gets ready to start workers. The caller must Close it.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Supervisor{log: cfg.Logger, groups: map[*Group]struct{}{}}, nil
}

// Close kills the groups that still run.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	s.closed = true
	var open []*Group
	for g := range s.groups {
		open = append(open, g)
	}
	s.mu.Unlock()
	for _, g := range open {
		_ = g.Close(syscall.SIGKILL, 0)
	}
	return nil
}

// GuardMain does nothing on this system.
func GuardMain() {}

// A Group is a set of workers started together. All methods may be called
// concurrently.
type Group struct {
	cfg    Config
	log    *slog.Logger
	pids   map[int]int
	result *Result
	done   chan struct{}
	stops  chan stopRequest

	workers []*worker
	exits   chan *worker
}

type stopRequest struct {
	sig   syscall.Signal
	grace time.Duration
}

type worker struct {
	rank   int
	cmd    *exec.Cmd
	call   *call
	exited bool
	sent   syscall.Signal
}

// Start starts one worker per local rank, in their order. If one cannot be
// started, those before it are killed and the error is a *StartError.
// Source: start_processes in multiprocessing/__init__.py.
func (s *Supervisor) Start(cfg Config) (*Group, error) {
	if cfg.Logger == nil {
		cfg.Logger = s.log
	}
	g := &Group{
		cfg: cfg, log: cfg.Logger, pids: map[int]int{},
		result: &Result{Exits: map[int]Exit{}, Failures: map[int]Exit{}, Stdouts: map[int]string{}, Stderrs: map[int]string{}},
		done:   make(chan struct{}), stops: make(chan stopRequest), exits: make(chan *worker),
	}
	err := cfg.validate()
	if len(cfg.CPUs) > 0 {
		err = errors.Join(err, errors.New("binding workers to CPUs needs Linux"))
	}
	s.mu.Lock()
	if s.closed {
		err = errors.Join(err, ErrClosed)
	}
	s.groups[g] = struct{}{}
	s.mu.Unlock()
	for i := 0; err == nil && i < len(cfg.Args); i++ {
		err = g.start(i)
	}
	for _, w := range g.workers {
		go func() {
			_ = w.cmd.Wait()
			g.exits <- w
		}()
	}
	go func() {
		g.run()
		s.mu.Lock()
		delete(s.groups, g)
		s.mu.Unlock()
	}()
	if cfg.Logs != nil {
		err = errors.Join(err, cfg.Logs.Started())
	}
	if err != nil {
		_ = g.Close(syscall.SIGKILL, 0)
		return nil, err
	}
	return g, nil
}

func (g *Group) start(rank int) error {
	cfg := &g.cfg
	base := cfg.Env
	if base == nil {
		base = os.Environ()
	}
	env := environ(base, cfg.Envs[rank])
	sink := logs.Sink{Stdout: os.Stdout, Stderr: os.Stderr}
	if cfg.Logs != nil {
		sink = cfg.Logs.Sink(rank)
		g.result.Stdouts[rank], g.result.Stderrs[rank] = sink.StdoutPath, sink.StderrPath
	}
	w := &worker{rank: rank, cmd: &exec.Cmd{Env: env, Stdin: os.Stdin, Stdout: sink.Stdout, Stderr: sink.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}}
	name := cfg.Entrypoint
	if cfg.Func != "" {
		name = cfg.Func
		call, err := newCall(cfg.Func, cfg.Args[rank])
		if err != nil {
			return &StartError{rank, name, err}
		}
		w.call = call
		if w.cmd.Path, err = os.Executable(); err != nil {
			return &StartError{rank, name, err}
		}
		w.cmd.Args = []string{os.Args[0]}
		w.cmd.Env = append(env, funcVar+"="+cfg.Func)
		w.cmd.ExtraFiles = []*os.File{call.childArgs, call.childResult}
	} else {
		path, err := lookPath(cfg.Entrypoint, env)
		if err != nil {
			return &StartError{rank, name, err}
		}
		w.cmd.Path, w.cmd.Args = path, append([]string{cfg.Entrypoint}, cfg.Args[rank]...)
	}
	err := w.cmd.Start()
	if w.call != nil {
		w.call.started(err == nil)
	}
	if err != nil {
		return &StartError{rank, name, explainExec(w.cmd.Path, err)}
	}
	g.workers = append(g.workers, w)
	g.pids[rank] = w.cmd.Process.Pid
	return nil
}

func (g *Group) run() {
	defer close(g.done)
	var timer *time.Timer
	var killAt <-chan time.Time
	left, stopping := len(g.workers), false
	signalAll := func(sig syscall.Signal) {
		for _, w := range g.workers {
			if !w.exited {
				w.sent = sig
				_ = syscall.Kill(-w.cmd.Process.Pid, sig)
			}
		}
	}
	stop := func(r stopRequest) {
		stopping = true
		signalAll(r.sig)
		if r.grace <= 0 {
			signalAll(syscall.SIGKILL)
		} else if timer == nil {
			timer = time.NewTimer(r.grace)
			killAt = timer.C
		}
	}
	for left > 0 {
		select {
		case w := <-g.exits:
			left--
			exit := g.exit(w)
			if exit.Code != 0 && !stopping {
				stop(stopRequest{syscall.SIGTERM, g.cfg.Grace})
			}
			if w.call != nil {
				exit.Value, exit.Err = w.call.result()
			}
			g.result.Exits[w.rank] = exit
			if exit.Code != 0 {
				g.result.Failures[w.rank] = exit
			}
		case r := <-g.stops:
			stop(r)
		case <-killAt:
			signalAll(syscall.SIGKILL)
		}
	}
	if timer != nil {
		timer.Stop()
	}
}

func (g *Group) exit(w *worker) Exit {
	w.exited = true
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	exit := Exit{LocalRank: w.rank, PID: w.cmd.Process.Pid, Time: time.Now(), StoppedBy: w.sent,
		ErrorFile: g.cfg.Envs[w.rank]["TORCHELASTIC_ERROR_FILE"], Code: 1}
	if status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		exit.Code = status.ExitStatus()
		if status.Signaled() {
			exit.Code, exit.CoreDumped = -int(status.Signal()), status.CoreDump()
		}
	} else {
		g.log.Error(fmt.Sprintf("worker %d: no exit status", w.rank))
	}
	return exit
}
