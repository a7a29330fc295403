// Package agent runs one host's worker group and keeps it alive.
//
// An Agent meets the other agents of the job (rendezvous), learns its ranks,
// starts one worker per local rank, and waits for one of: a worker ends, other
// nodes wait to join, a signal. What follows from each is decided by one pure
// function (next); this file does what it says. A restart stops the whole group
// and starts at the rendezvous again, with a new, empty store for the workers
// and a new log directory.
//
// The package does not read flags or the launcher's environment; that is
// package launch.
//
// Source: SimpleElasticAgent and LocalElasticAgent in elastic/agent/server.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// DefaultExitBarrierTimeout is how long an agent whose workers succeeded waits
// for the others.
const DefaultExitBarrierTimeout = 300 * time.Second

// closeTimeout bounds the clean-up of the rendezvous and of a stuck console
// once the job is being stopped.
const closeTimeout = 5 * time.Second

// Spec says what a worker is.
// Source: WorkerSpec in elastic/agent/server/api.py.
type Spec struct {
	// Role is shared by workers that do the same; role ranks count within it.
	Role string
	// LocalWorldSize is the number of workers on this host, at least 1.
	LocalWorldSize int
	// Entrypoint is the program, looked up in the worker's PATH; or Func names
	// a function registered with package process.
	Entrypoint, Func string
	// Args returns a worker's arguments, without the program's name.
	Args func(localRank int) []string
	// Env returns variables of one worker that override the standard ones. It
	// may be nil.
	Env func(localRank int) map[string]string
	// CPUs are the CPUs a worker may use, by local rank; absent means all.
	CPUs map[int][]int
	// Title names the entrypoint in the failure report.
	Title string
}

// Config is what an Agent needs. The caller closes Rendezvous, Supervisor and
// Logs after Run has returned.
type Config struct {
	Spec       Spec
	Rendezvous rendezvous.Handler
	Supervisor *process.Supervisor
	Logs       *logs.Run

	// Env is the environment that workers inherit; nil means the agent's own.
	Env []string
	// Host is this host's name in events and reports.
	Host string
	// MaxRestarts is how many times the group may be started again after a
	// failure.
	MaxRestarts int
	// ShutdownTimeout is the time between a stop signal to the workers and
	// SIGKILL. Zero kills at once.
	ShutdownTimeout time.Duration
	// ExitBarrierTimeout defaults to DefaultExitBarrierTimeout.
	ExitBarrierTimeout time.Duration
	// UninterruptibleTimeout is how long a worker may be in uninterruptible
	// sleep before the group counts as unhealthy. Zero turns the check off.
	UninterruptibleTimeout time.Duration
	// IdenticalWorkers assigns ranks without the store; all agents must then
	// have the same role and local world size.
	IdenticalWorkers bool
	// Hurry, once closed, cuts the grace of a stop that is under way.
	Hurry <-chan struct{}

	// Events gets what happened, for machines. Default: nowhere.
	Events events.Sink
	// Metrics gets counts and durations. Default: nowhere.
	Metrics metrics.Handler
	// Logger gets what happened, for people. Default slog.Default().
	Logger *slog.Logger
}

// Result is how a run ended.
// Source: RunResult in elastic/agent/server/api.py.
type Result struct {
	State State
	// Restarts is how many restarts were used.
	Restarts int
	// ReturnValues of function workers, by global rank.
	ReturnValues map[int][]byte
	// Failures of the last attempt, by global rank; empty on success, and when
	// the workers ended because the agent was told to stop.
	Failures map[int]*failure.ProcessFailure
	// Report explains the failures; nil if there are none.
	Report *failure.Report
	// ReportFile is where Report was written as JSON; empty if nowhere.
	ReportFile string
}

// IsFailed says whether the run ended in failure.
func (r *Result) IsFailed() bool { return r.State != Succeeded }

// An Agent runs one worker group. Make it with New; Run may be called once.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	metrics  metrics.Stream
	restarts int // used so far
}

// New checks the configuration.
func New(cfg Config) (*Agent, error) {
	var errs []error
	if cfg.Spec.LocalWorldSize < 1 {
		errs = append(errs, fmt.Errorf("local world size is %d, must be at least 1", cfg.Spec.LocalWorldSize))
	}
	if cfg.MaxRestarts < 0 {
		errs = append(errs, fmt.Errorf("max restarts is %d, must not be negative", cfg.MaxRestarts))
	}
	if (cfg.Spec.Entrypoint == "") == (cfg.Spec.Func == "") {
		errs = append(errs, errors.New("a worker needs an entrypoint or a function, and not both"))
	}
	if cfg.Rendezvous == nil || cfg.Supervisor == nil || cfg.Logs == nil {
		errs = append(errs, errors.New("rendezvous, supervisor and logs must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Spec.Args == nil {
		cfg.Spec.Args = func(int) []string { return nil }
	}
	if cfg.ExitBarrierTimeout == 0 {
		cfg.ExitBarrierTimeout = DefaultExitBarrierTimeout
	}
	if cfg.Events == nil {
		cfg.Events = events.Null
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Agent{cfg: cfg, log: cfg.Logger, metrics: metrics.Stream{Handler: cfg.Metrics}}, nil
}

// Run runs the group until it has succeeded, failed for good, or ctx is done.
// It returns when everything that it started has ended. A group that failed is
// a Result, not an error. When ctx is done the workers get the signal of its
// cause, if that is a *process.SignalError, else SIGTERM, and Run returns the
// result along with the cause. Other errors are those of the rendezvous and of
// the log directory.
func (a *Agent) Run(ctx context.Context) (*Result, error) {
	began := time.Now()
	for {
		at, err := a.start(ctx)
		var exits map[int]process.Exit
		var r *Result
		if startErr, ok := errors.AsType[*process.StartError](err); ok {
			r, exits = a.failedToStart(ctx, at, startErr)
			err = nil
		} else if err == nil {
			r, exits, err = a.watch(ctx, at)
		}
		if r != nil || err != nil {
			a.recordEnd(at, exits, r, began, err)
			return r, err
		}
	}
}

// attempt is one start of the worker group.
type attempt struct {
	round *rendezvous.Info
	ranks ranks
	logs  *logs.Attempt
	group *process.Group
	began time.Time // when the workers were about to start
}

func (a *Agent) start(ctx context.Context) (*attempt, error) {
	at := &attempt{}
	began := time.Now()
	round, err := a.cfg.Rendezvous.Next(ctx)
	a.recordStep(at, events.Rendezvous, began, err)
	if err != nil {
		return at, err
	}
	at.round = round

	began = time.Now()
	if a.cfg.IdenticalWorkers {
		at.ranks = identicalRanks(round.Rank, round.WorldSize, a.cfg.Spec.LocalWorldSize)
	} else {
		at.ranks, err = exchangeRanks(ctx, round.Store, round.Rank, round.WorldSize, a.cfg.Spec.Role, a.cfg.Spec.LocalWorldSize)
	}
	a.recordStep(at, events.AssignWorkerRanks, began, err)
	if err != nil {
		return at, fmt.Errorf("assign ranks: %w", err)
	}
	a.log.Info("rendezvous complete", "run_id", a.cfg.Rendezvous.RunID(), "role", a.cfg.Spec.Role, "round", round.Round, "node", round.Rank, "nodes", round.WorldSize,
		"world_size", at.ranks.world, "master_addr", round.MasterAddr, "master_port", round.MasterPort, "restart", a.restarts)
	return at, a.startWorkers(at)
}

func (a *Agent) startWorkers(at *attempt) error {
	at.began = time.Now()
	spec := &a.cfg.Spec
	workers := make([]logs.Worker, spec.LocalWorldSize)
	for i := range workers {
		workers[i] = logs.Worker{LocalRank: i, Rank: at.ranks.base + i, Role: spec.Role}
	}
	var err error
	if at.logs, err = a.cfg.Logs.Attempt(a.restarts, workers); err != nil {
		return err
	}
	cfg := process.Config{
		Name:                   spec.Role,
		Entrypoint:             spec.Entrypoint,
		Func:                   spec.Func,
		Args:                   make(map[int][]string, len(workers)),
		Envs:                   make(map[int]map[string]string, len(workers)),
		Env:                    a.cfg.Env,
		Logs:                   at.logs,
		CPUs:                   spec.CPUs,
		Grace:                  a.cfg.ShutdownTimeout,
		UninterruptibleTimeout: a.cfg.UninterruptibleTimeout,
		Logger:                 a.log,
	}
	for i := range workers {
		cfg.Args[i] = spec.Args(i)
		cfg.Envs[i] = a.workerEnv(at, i)
	}
	at.group, err = a.cfg.Supervisor.Start(cfg)
	a.metrics.Step(metrics.StartWorkers, at.began, err)
	if err != nil {
		return err
	}
	a.metrics.Tick(spec.Role, a.cfg.MaxRestarts-a.restarts, string(Healthy))
	pids := at.group.PIDs()
	for i := range workers {
		pid := pids[i]
		a.cfg.Events.Record(a.workerEvent(at, events.Start, i, pid))
	}
	return nil
}

// workerEnv is what a worker's environment has on top of the inherited one.
// Source: LocalElasticAgent._start_workers.
func (a *Agent) workerEnv(at *attempt, localRank int) map[string]string {
	useAgentStore := "False"
	if a.cfg.Rendezvous.UseAgentStore() {
		useAgentStore = "True"
	}
	env := map[string]string{
		"LOCAL_RANK":                   strconv.Itoa(localRank),
		"RANK":                         strconv.Itoa(at.ranks.base + localRank),
		"GROUP_RANK":                   strconv.Itoa(at.round.Rank),
		"ROLE_RANK":                    strconv.Itoa(at.ranks.roleBase + localRank),
		"ROLE_NAME":                    a.cfg.Spec.Role,
		"LOCAL_WORLD_SIZE":             strconv.Itoa(a.cfg.Spec.LocalWorldSize),
		"WORLD_SIZE":                   strconv.Itoa(at.ranks.world),
		"GROUP_WORLD_SIZE":             strconv.Itoa(at.round.WorldSize),
		"ROLE_WORLD_SIZE":              strconv.Itoa(at.ranks.roleWorld),
		"MASTER_ADDR":                  at.round.MasterAddr,
		"MASTER_PORT":                  strconv.Itoa(at.round.MasterPort),
		"TORCHELASTIC_RESTART_COUNT":   strconv.Itoa(a.restarts),
		"TORCHELASTIC_MAX_RESTARTS":    strconv.Itoa(a.cfg.MaxRestarts),
		"TORCHELASTIC_RUN_ID":          a.cfg.Rendezvous.RunID(),
		"TORCHELASTIC_USE_AGENT_STORE": useAgentStore,
		"TORCHELASTIC_ERROR_FILE":      at.logs.Sink(localRank).ErrorFile,
	}
	if a.cfg.Spec.Env != nil {
		maps.Copy(env, a.cfg.Spec.Env(localRank))
	}
	return env
}

// watch waits for the group to end or for a reason to end it, and does what
// next says. It returns neither result nor error when a new attempt is due.
func (a *Agent) watch(ctx context.Context, at *attempt) (*Result, map[int]process.Exit, error) {
	ev, res, err := a.wait(ctx, at)
	a.finishLogs(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	left := a.cfg.MaxRestarts - a.restarts
	state, act := next(ev, left)
	a.metrics.Tick(a.cfg.Spec.Role, left, string(state))
	switch act {
	case actFinish:
		a.exitBarrier(ctx, at)
		return a.succeeded(at, res), res.Exits, nil
	case actRejoin:
		a.log.Info("other nodes wait to join; starting a new round")
		return nil, nil, nil
	case actRestart:
		failed := a.failed(at, state, res.Failures, nil)
		a.restarts++
		a.log.Warn("restarting the worker group", "cause", failed.Report.Root().Error(),
			"restart", fmt.Sprintf("%d/%d", a.restarts, a.cfg.MaxRestarts), "report", failed.ReportFile)
		return nil, nil, nil
	case actStop:
		return a.stopped(at, state, res), res.Exits, context.Cause(ctx)
	default:
		return a.failed(at, state, res.Failures, nil), res.Exits, nil
	}
}

// wait returns the first event that ends the attempt, with the workers stopped.
func (a *Agent) wait(ctx context.Context, at *attempt) (event, *process.Result, error) {
	type outcome struct {
		res *process.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := at.group.Wait(context.WithoutCancel(ctx))
		done <- outcome{res, err}
	}()
	hurried := make(chan struct{})
	defer close(hurried)
	go func() {
		select {
		case <-a.cfg.Hurry:
			at.group.Kill()
		case <-hurried:
		}
	}()

	ev := evSucceeded
	var o outcome
	select {
	case o = <-done:
	case <-a.cfg.Rendezvous.Changes():
		ev = evNodesWaiting
		err := at.group.Close(stopSignal(nil), a.cfg.ShutdownTimeout)
		o = <-done
		o.err = errors.Join(o.err, err)
	case <-ctx.Done():
		ev = evSignal
		cause := context.Cause(ctx)
		a.log.Warn("shutting down workers", "cause", cause)
		err := at.group.Close(stopSignal(cause), a.cfg.ShutdownTimeout)
		o = <-done
		o.err = errors.Join(o.err, err)
	}
	if o.err != nil {
		return ev, nil, o.err
	}
	if ev == evSucceeded {
		switch {
		case o.res.Uninterruptible:
			ev = evUnhealthy
		case o.res.IsFailed():
			ev = evFailed
		}
	}
	return ev, o.res, nil
}

// finishLogs brings everything that the workers wrote to the console. A console
// that takes nothing any more may hold it up only until the job is stopped.
func (a *Agent) finishLogs(ctx context.Context, at *attempt) {
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(closeTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-a.cfg.Hurry:
		case <-drain.Done():
		}
		cancel()
	})
	defer stop()
	stats, err := at.logs.Finish(drain)
	if err != nil || stats.LostBytes > 0 {
		a.log.Warn("worker output was lost", "bytes", stats.LostBytes, "error", err)
	}
}

// exitBarrier waits for the other agents' workers to succeed too. That it fails
// is no failure of the job.
func (a *Agent) exitBarrier(ctx context.Context, at *attempt) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.ExitBarrierTimeout)
	defer cancel()
	began := time.Now()
	if err := store.Barrier(ctx, at.round.Store, exitBarrierKey, at.round.WorldSize); err != nil {
		a.log.Error("exit barrier", "error", err, "elapsed", time.Since(began))
	}
}

func (a *Agent) succeeded(at *attempt, res *process.Result) *Result {
	r := &Result{State: Succeeded, Restarts: a.restarts, ReturnValues: make(map[int][]byte, len(res.Exits))}
	for i, exit := range res.Exits {
		r.ReturnValues[at.ranks.base+i] = exit.Value
	}
	return r
}

// stopped is the result of an attempt that was told to stop. Workers that did as
// they were told are no failures; there is a report if one failed by itself.
func (a *Agent) stopped(at *attempt, state State, res *process.Result) *Result {
	for _, exit := range res.Failures {
		if exit.StoppedBy == 0 || exit.Abandoned != "" {
			return a.failed(at, state, res.Failures, nil)
		}
	}
	return &Result{State: state, Restarts: a.restarts}
}

// failedToStart reports a worker that could not be started.
func (a *Agent) failedToStart(ctx context.Context, at *attempt, startErr *process.StartError) (*Result, map[int]process.Exit) {
	a.finishLogs(ctx, at)
	state, _ := next(evStartFailed, a.cfg.MaxRestarts-a.restarts)
	exits := map[int]process.Exit{
		startErr.LocalRank: {LocalRank: startErr.LocalRank, Code: 1, Time: time.Now()},
	}
	return a.failed(at, state, exits, startErr), exits
}

// failed explains the failures of an attempt and writes the report beside its
// logs.
func (a *Agent) failed(at *attempt, state State, exits map[int]process.Exit, startErr error) *Result {
	r := &Result{State: state, Restarts: a.restarts, Failures: make(map[int]*failure.ProcessFailure, len(exits))}
	var list []*failure.ProcessFailure
	for _, localRank := range slices.Sorted(maps.Keys(exits)) {
		exit, stack := exits[localRank], ""
		if e, ok := errors.AsType[*process.FuncError](exit.Err); ok {
			stack = e.Stack
		}
		f := failure.New(failure.Observation{
			LocalRank: localRank, Rank: at.ranks.base + localRank, PID: exit.PID, ExitCode: exit.Code,
			CoreDumped: exit.CoreDumped, Started: at.began, Time: exit.Time, StoppedBy: exit.StoppedBy,
			StartErr: startErr, Entrypoint: a.cfg.Spec.Entrypoint,
			OOM: exit.OOMKilled, Abandoned: exit.Abandoned, ErrorFile: exit.ErrorFile,
			StderrTail: at.logs.StderrTail(localRank), StderrPath: at.logs.Sink(localRank).StderrPath,
			Host: a.cfg.Host, Err: exit.Err, Stack: stack,
		})
		r.Failures[f.Rank] = f
		list = append(list, f)
	}
	r.Report = failure.NewReport(failure.ReportConfig{
		Title: a.cfg.Spec.Title, Host: a.cfg.Host, RunID: a.cfg.Rendezvous.RunID(),
		Attempt: a.restarts, Restarts: a.cfg.MaxRestarts,
	}, list)
	r.ReportFile = a.writeReport(at, r.Report)
	return r
}

// writeReport writes the report as JSON into the attempt's log directory and
// returns the file's path; "" where there is no such directory.
func (a *Agent) writeReport(at *attempt, report *failure.Report) string {
	if at.logs.Dir() == "" {
		return ""
	}
	path := filepath.Join(at.logs.Dir(), "report.json")
	file, err := os.Create(path)
	if err == nil {
		err = errors.Join(report.WriteJSON(file), file.Close())
	}
	if err != nil {
		a.log.Warn("write the failure report", "error", err)
		return ""
	}
	return path
}

// stopSignal is what workers get when the agent stops for cause.
func stopSignal(cause error) syscall.Signal {
	if s, ok := errors.AsType[*process.SignalError](cause); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}
