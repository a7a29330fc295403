// Package agent runs one host's worker group and keeps it alive.
//
// An Agent meets the other agents of the job (rendezvous), learns its ranks,
// starts one worker per local rank, and waits for one of: a worker ends, the set
// of nodes changes, another node's workers fail, a signal. What follows from each
// is decided by one pure function (next); one goroutine waits, asks it, and does
// what it says (watch.go). A restart stops the whole group and starts at the
// rendezvous again, with a new, empty store for the workers and a new log
// directory.
//
// Agents tell each other of failures through the store of the round, under keys
// that begin with "muster/"; agents of TorchElastic neither write nor need them.
//
// An agent emits what happens as one stream of events (Event). The log for people is one
// reader of it (log.go); event logs, metrics and status pages are others.
//
// The package does not read flags or the launcher's environment; that is
// package launch.
//
// Source: SimpleElasticAgent and LocalElasticAgent in elastic/agent/server.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/internal/host/kmsg"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/internal/job/witness"
	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/timer"
)

// DefaultExitBarrierTimeout is how long an agent whose workers succeeded waits
// for the others.
const DefaultExitBarrierTimeout = 300 * time.Second

// closeTimeout bounds the clean-up of the rendezvous and of a stuck console
// once the job is being stopped.
const closeTimeout = 5 * time.Second

const asyncErrorsVar = "TORCH_NCCL_ASYNC_ERROR_HANDLING"

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
	// Args returns a worker's arguments, without the program's name. ${local_rank} in them
	// is left as it is; package launch replaces it. The rank is the worker's in this
	// attempt.
	Args func(localRank, rank int) []string
	// Input returns what a worker's function gets; process.JSON says how values become
	// bytes. nil means no input.
	Input func(localRank int) []byte
	// Env returns variables of one worker that override the standard ones. It
	// may be nil.
	Env func(localRank int) map[string]string
	// CPUs are the CPUs a worker may use, by local rank; absent means all.
	CPUs map[int][]int
	// Title names the entrypoint in the failure report. Default Entrypoint or Func.
	Title string
}

// A Group is the workers of one attempt, as an Agent needs them. *process.Group is one;
// its methods' comments say what each does. An error of Wait, before its context is done, says that the
// workers are not known any more: all count as failed, and Kill is called.
// Source: PContext in multiprocessing/api.py.
type Group interface {
	Wait(ctx context.Context) (*process.Result, error)
	Failed() <-chan process.Exit
	PIDs() map[int]int
	Close(sig syscall.Signal, grace time.Duration)
	Kill()
	// Signal reports whether it has sent a signal to a worker. Replace starts another worker in place of one that has
	// ended, for a live change; process.ErrNoReplacement says that it cannot.
	Signal(localRank int, sig syscall.Signal) bool
	Replace(localRank int, args []string, env map[string]string) error
}

// Options are what a job may choose about how its workers are watched and stopped. They
// are part of Config, and of that of package launch.
type Options struct {
	// MaxRestarts is how many times the group may be started again after a
	// failure.
	MaxRestarts int
	// Policy decides what follows from a failure of this host's workers, within
	// MaxRestarts; the policy's own MaxRestarts is ignored. Without a policy the group
	// starts again after each failure, MaxRestarts times.
	Policy *policy.Policy
	// ShutdownTimeout is the time between a stop signal to the workers and
	// SIGKILL. Zero means process.DefaultGrace, process.NoGrace none.
	ShutdownTimeout time.Duration
	// HelperTimeout is process.Config's; in package launch zero means 30 s, process.NoGrace none.
	HelperTimeout time.Duration
	// ExitBarrierTimeout defaults to DefaultExitBarrierTimeout.
	ExitBarrierTimeout time.Duration
	// Live lets workers that use muster.live continue when others are lost or join (docs/live.md).
	// LiveTimeout is how long they have to pause, and to continue; zero means
	// DefaultLiveTimeout.
	Live        bool
	LiveTimeout time.Duration
	// HangTimeout is how long all workers of this host may show no sign of life (no
	// output, almost no CPU time, no use of a timer) until they count as hanging. Zero
	// turns the check off, and nothing looks at them then. HangAuto learns it from the job.
	HangTimeout time.Duration
	// NoCollectives leaves workers as they are: nothing is put into them that tells what PyTorch's flight
	// recorder has kept, and the files of NCCL's are where PyTorch has them.
	NoCollectives bool
	// HangNotify keeps such workers alive: evidence is kept and the log says so.
	// Otherwise they are killed, which is a failure of the group.
	HangNotify bool
	// AutopsyTimeout bounds how long evidence of workers that hang is collected
	// before they are killed. Zero or less turns it off here; in package launch zero means
	// 5 s.
	AutopsyTimeout time.Duration
	// PreemptionSignals are those among the signals that stop the agent which mean
	// that the whole job is to stop: all nodes stop their workers with the signal
	// at the same moment. Other signals make only this node leave.
	PreemptionSignals []syscall.Signal
}

// Config is what an Agent needs. The caller closes Rendezvous, Supervisor and
// Logs after Run has returned.
type Config struct {
	Spec       Spec
	Rendezvous rendezvous.Handler
	Supervisor *process.Supervisor
	Logs       *logs.Run
	// Start starts the workers of an attempt. Default Supervisor.Start; a Start of your own
	// may change the Config and call that, or do without a Supervisor. The Group's PIDs have to be processes of this
	// host: the agent looks at them for hangs and timers.
	// Source: LocalElasticAgent._start_workers.
	Start func(process.Config) (Group, error)
	// Prepare is called before each rendezvous, and returns at once. workers may be called once,
	// from any goroutine; it returns what Start will get, but for what only the round gives: ranks
	// and other values of variables that SetsVariable names, and the logs. It may wait for
	// Spec.Env. done, which may be nil, is closed when all is prepared; a host waits up to two minutes
	// for it before it joins. May be nil.
	Prepare func(workers func() process.Config) (done <-chan struct{})

	// Env is the environment that workers inherit; nil means the agent's own.
	Env []string
	// Host is this host's name in events and reports. Default os.Hostname.
	Host string
	// Options say how the workers are watched and stopped.
	Options
	// Rand is for the jitter of the Policy's back-offs. Default: one with a seed of its
	// own.
	Rand *rand.Rand
	// UninterruptibleTimeout is how long a worker may be in uninterruptible
	// sleep before the group counts as unhealthy. Zero turns the check off.
	UninterruptibleTimeout time.Duration
	// FileTimer serves timers to the workers of this host, as PyTorch's
	// FileTimerClient uses them, at the FIFO TimerFile. Without a name it gets one in
	// the temporary directory. The workers find the path in TORCHELASTIC_TIMER_FILE.
	FileTimer bool
	TimerFile string
	// IdenticalWorkers assigns ranks without the store; all agents must then
	// have the same role and local world size.
	IdenticalWorkers bool
	// PeerTimeout is how long the agent waits for word from the other nodes once
	// something has gone wrong: for the reason why its workers lost their peers,
	// and for what the job's report needs. Default 2 s.
	PeerTimeout time.Duration
	// Hurry, once closed, cuts the grace of a stop that is under way.
	Hurry <-chan struct{}

	// Observers get what happens.
	Observers []func(Event)
	// Logger gets what happened, for people. Default slog.Default().
	Logger *slog.Logger

	kernelLog func(each func(record string)) // kmsg.Read but in tests
}

// Result is how a run ended.
// Source: RunResult in elastic/agent/server/api.py.
type Result struct {
	State State
	// Restarts is how many restarts the job has used.
	Restarts int
	// Left says that the job may continue without this host: the caller should use the
	// rendezvous' Leave instead of Shutdown.
	Left bool
	// Drained says that it left because a rule of the policy says so of its workers'
	// failure.
	Drained bool
	// Preempted says who asked the whole job to stop; nil if nobody did.
	Preempted *failure.Preemption
	// ReturnValues of function workers, by global rank.
	ReturnValues map[int][]byte
	// Failures of this host's workers in the last attempt, by global rank, also of those that the agent stopped
	// (failure.ProcessFailure.Stopped); empty on success, and when the agent was told to stop.
	Failures map[int]*failure.ProcessFailure
	// Report explains the failures of all hosts; nil if there are none. Lost has those of this
	// host's workers without which a live group has succeeded; nil if there are none.
	Report, Lost *failure.Report
	// ReportFile is where Report or Lost was written as JSON; empty if nowhere. One of a
	// preempted job is written also where Report is nil.
	ReportFile string
}

// IsFailed reports whether the run ended in failure. A nil Result, which comes with an error, has failed.
func (r *Result) IsFailed() bool { return r == nil || r.State != Succeeded }

// Err says why the run failed; nil if it has not, or if there is no Result. It is the job's first failure, a
// *failure.ProcessFailure, where one is known.
func (r *Result) Err() error {
	switch {
	case r == nil || !r.IsFailed():
		return nil
	case r.Report != nil && r.Report.Root() != nil:
		return r.Report.Root()
	case r.Preempted != nil:
		return fmt.Errorf("the job is preempted: %v", r.Preempted)
	}
	return fmt.Errorf("the worker group ended in state %s", r.State)
}

// An Agent runs one worker group. Make it with New; Run may be called once.
type Agent struct {
	// Nothing changes these after New, except that Run sets evidence.Witness before the first attempt.
	cfg      Config
	job      Job
	log      *slog.Logger
	evidence *evidence.Config

	// Only the goroutine of Run touches these, between attempts and during them.
	restarts restarts // the job's
	last     *attempt // the one before, which has ended; nil in the first
	state    State    // the last that was decided
	judge    judge

	// Other goroutines read these: the callers of Workers and the like, and the timers' servers.
	published published
	watchdog  atomic.Pointer[watchdog] // nil before the run
	gpus      devices.Meter
	stopping  atomic.Bool // Stopping was called

	live      *link.Link   // nil without Config.Live
	kept      *kept        // of the last attempt; of the goroutine of Run, as carried is
	carried   *membership  // what the next attempt begins with; nil where all start anew
	fruitless atomic.Int32 // live changes without a loss, one after the other
	ran       atomic.Bool  // Run was called
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
		errs = append(errs, errors.New("a worker needs an Entrypoint or a Func, and not both"))
	}
	if cfg.Spec.Func != "" {
		errs = append(errs, process.CheckFunc(cfg.Spec.Func))
	} else if cfg.Spec.Input != nil {
		errs = append(errs, errors.New("Spec.Input is for functions; a program has Args"))
	}
	if cfg.Rendezvous == nil || cfg.Logs == nil || cfg.Supervisor == nil && cfg.Start == nil {
		errs = append(errs, errors.New("Config.Rendezvous, Logs, and Supervisor or Start must be set"))
	}
	if slices.ContainsFunc(cfg.Observers, func(observe func(Event)) bool { return observe == nil }) {
		errs = append(errs, errors.New("one of Config.Observers is nil"))
	}
	if err := errors.Join(append(errs, cfg.checkTimes())...); err != nil {
		return nil, err
	}
	if cfg.Start == nil {
		cfg.Start = func(c process.Config) (Group, error) { return cfg.Supervisor.Start(c) }
	}
	if cfg.Spec.Args == nil {
		cfg.Spec.Args = func(int, int) []string { return nil }
	}
	cfg.Spec.Title = cmp.Or(cfg.Spec.Title, cfg.Spec.Entrypoint, cfg.Spec.Func)
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname()
	}
	cfg.ShutdownTimeout = cmp.Or(cfg.ShutdownTimeout, process.DefaultGrace)
	cfg.ExitBarrierTimeout = cmp.Or(cfg.ExitBarrierTimeout, DefaultExitBarrierTimeout)
	cfg.PeerTimeout = cmp.Or(cfg.PeerTimeout, live.PeerTimeout)
	cfg.LiveTimeout = cmp.Or(cfg.LiveTimeout, DefaultLiveTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.kernelLog == nil {
		cfg.kernelLog = kmsg.Read
	}
	// The logger comes last, so that a reader of a line finds the state that it reports.
	cfg.Observers = append(slices.Clone(cfg.Observers), logTo(cfg.Logger, cfg.Rendezvous))
	job := Job{
		RunID: cfg.Rendezvous.RunID(), Backend: cfg.Rendezvous.Backend(), Role: cfg.Spec.Role, Host: cfg.Host,
		Title:   cfg.Spec.Title,
		Program: filepath.Base(cmp.Or(cfg.Spec.Entrypoint, cfg.Spec.Func)), LocalWorldSize: cfg.Spec.LocalWorldSize,
		MaxRestarts: cfg.MaxRestarts, LogDir: cfg.Logs.Dir(),
	}
	a := &Agent{cfg: cfg, job: job, log: cfg.Logger, restarts: restarts{most: cfg.MaxRestarts}}
	a.judge = judge{a: a, engine: newPolicy(&cfg)}
	a.evidence = a.evidenceConfig()
	return a, nil
}

// Job returns what stays the same while the agent runs.
func (a *Agent) Job() *Job { return &a.job }

// Run runs the group until it has succeeded, failed for good, or ctx is done.
// It returns when everything that it started has ended. A group that failed is
// a Result, not an error, and so is a job that failed elsewhere. When ctx is done
// the workers get the signal of its cause, if that is a *process.SignalError,
// else SIGTERM, and Run returns the result along with the cause. Other errors are
// those of the rendezvous and of the log directory; they may come with a result.
func (a *Agent) Run(ctx context.Context) (*Result, error) {
	began := time.Now()
	if a.ran.Swap(true) {
		return nil, errors.New("agent: Run was called before; make another Agent with New")
	}
	a.cfg.Rendezvous.Handle(evidence.Kind, a.answerEvidence)
	if err := a.startWatchdog(); err != nil {
		return a.finished(began, nil, nil, err)
	}
	defer a.watchdog.Load().stop()
	defer a.published.close()
	if !a.cfg.NoCollectives {
		w, err := witness.Listen(a.evidence.Answers)
		if err != nil {
			a.log.Warn("nobody will know what the workers' collectives wait for", "error", err)
		} else {
			a.evidence.Witness = w
			a.cfg.Supervisor.RemoveIfKilled(append(w.Files(a.cfg.Spec.LocalWorldSize), w.Dir())...)
			defer w.Close()
		}
	}
	if a.cfg.Live {
		var err error
		if a.live, err = link.Listen(a.log); err != nil {
			return a.finished(began, nil, nil, err)
		}
		a.cfg.Supervisor.RemoveIfKilled(a.live.Path(), filepath.Dir(a.live.Path()))
		defer a.live.Close()
		a.cfg.Rendezvous.OnSpare(func() { a.stopAsSpare(ctx) })
	}
	for rate := (pace{}); ; {
		at, before := a.newAttempt(ctx), a.restarts.used
		r, err := a.attempt(ctx, at)
		if r != nil || err != nil {
			a.dropKept(ctx)
		}
		at.close()
		a.emit(at, AttemptEnded{Causes: at.causes()})
		if r != nil || err != nil {
			return a.finished(began, at, r, err)
		}
		a.last = at
		if a.judge.pause = rate.pause(time.Since(at.status.since), a.restarts.used > before || a.kept != nil); a.judge.pause >= time.Second {
			a.log.Warn("rounds end as soon as they begin; waiting before the next", "run_id", a.cfg.Rendezvous.RunID(),
				"round", at.round.Round, "for", a.judge.pause)
		}
	}
}

// finished emits the end of a run, and returns its result. at is the last attempt; nil without
// one.
func (a *Agent) finished(began time.Time, at *attempt, r *Result, err error) (*Result, error) {
	f := Finished{Step: Step{began, err}, Result: r}
	if at != nil {
		f.Exits = at.outcome.exits
	}
	a.emit(at, f)
	return r, err
}

// attempt joins a round and runs the workers in it. It returns neither a result
// nor an error when another round is due.
func (a *Agent) attempt(ctx context.Context, at *attempt) (*Result, error) {
	if err := a.judge.waitBackOff(ctx); err != nil {
		return a.notAdmitted(ctx, err)
	}
	began := time.Now()
	a.emit(a.last, Joining{Again: a.last != nil})
	if a.cfg.Prepare != nil {
		prepared := a.cfg.Prepare(func() process.Config {
			return (&runner{a, &attempt{round: &rendezvous.Info{}, team: team{logs: &logs.Attempt{}}}}).workers(0)
		})
		if prepared != nil && a.kept == nil {
			a.awaitPrepared(ctx, prepared)
		}
	}
	a.cfg.Rendezvous.CountRestarts(a.restarts.used)
	round, err := a.nextRound(ctx)
	for tries := a.cfg.MaxRestarts; tries > 0 && isShortage(err) && !a.cfg.Rendezvous.CanChange() &&
		at.outlives(startPause); tries-- {
		a.log.Warn("cannot begin a round for now; trying again", "run_id", a.cfg.Rendezvous.RunID(), "error", err)
		round, err = a.nextRound(ctx)
	}
	if at.round = round; err == nil {
		a.learnRestarts(ctx, at)
		a.published.joined(at, a.cfg.Host)
	}
	a.emit(at, Joined{Step{began, err}, a.before()})
	if err != nil {
		return a.notAdmitted(ctx, err)
	}
	at.status.since = time.Now()
	a.assignRanks(at)
	return a.watch(ctx, at)
}

// preparing is how long a host waits at most before it joins.
const preparing = 2 * time.Minute

// awaitPrepared lets a host join a job when its workers can start: all others stand still from
// the moment at which it joins until they do.
func (a *Agent) awaitPrepared(ctx context.Context, prepared <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	select {
	case <-prepared:
		return
	case <-time.After(time.Second):
		a.log.Info("this host joins the job when its template of warm starts is ready", "run_id", a.cfg.Rendezvous.RunID())
	case <-ctx.Done():
	}
	_ = sleep.Until(ctx, prepared)
}

// notAdmitted says what it means that there is no further round.
func (a *Agent) notAdmitted(ctx context.Context, err error) (*Result, error) {
	runID := a.cfg.Rendezvous.RunID()
	if a.stopping.Load() && (errors.Is(err, rendezvous.ErrRedundant) || errors.Is(err, rendezvous.ErrClosed)) {
		<-ctx.Done() // others have been asked before
		err = context.Cause(ctx)
	}
	ended, _ := errors.AsType[*rendezvous.EndedError](err)
	switch {
	case ended != nil && (a.last == nil || errors.Is(err, rendezvous.ErrRedundant)) && ctx.Err() == nil:
		return a.endedWithout(ended)
	case errors.Is(err, rendezvous.ErrRedundant):
		a.log.Warn("the job has ended without needing this host, which was a spare", "run_id", runID)
		return &Result{State: Succeeded, Restarts: a.restarts.used, Left: true}, nil
	case ctx.Err() != nil:
		preempted := a.preemption(context.Cause(ctx))
		if preempted != nil {
			if a.last != nil {
				a.last.notify.announcePreemption(preempted)
			}
			a.emit(nil, JobPreempted{*preempted})
		}
		// A job that has never had this host continues without it.
		left := preempted == nil || a.last == nil
		return &Result{State: Failed, Restarts: a.restarts.used, Left: left, Preempted: preempted}, err
	case errors.Is(err, rendezvous.ErrClosed) && a.last != nil:
		return a.endedMeanwhile(ctx, a.last)
	case errors.Is(err, rendezvous.ErrClosed):
		return nil, fmt.Errorf("the job with run ID %q has ended, and its ID cannot be used again on this store; "+
			"start the job again with another Spec.RunID: %w", runID, err)
	}
	return nil, err
}

// before is the last round; nil in the first.
func (a *Agent) before() *rendezvous.Info {
	if a.last == nil {
		return nil
	}
	return a.last.round
}

// SetsVariable reports whether every worker gets the variable from its agent, whatever the
// environment has.
func SetsVariable(name string) bool {
	switch name {
	case "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
		"GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
		"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
		timer.EnvSocket, link.SocketVar, link.IDVar, "MUSTER_WORKER", "MUSTER_FUNC":
		return true
	}
	return false
}
