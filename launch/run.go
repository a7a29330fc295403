package launch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/host/limits"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/internal/wait/steady"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// closeTimeout bounds closing the rendezvous at the end of a job, where other hosts may be busy, or
// stop their workers.
const closeTimeout = 30 * time.Second

// hurriedClose is the same after a second signal.
const hurriedClose = 5 * time.Second

// lastWords is how long a console may take nothing of what waits for it at the end.
const lastWords = time.Second

// Run runs one host's part of a job and returns when all that it started has
// ended. A job whose workers failed is a Result with a Report, not an error;
// errors are those of the configuration, the rendezvous and the log directory.
// A job that a signal stopped returns its result along with a
// *process.SignalError.
//
// Run handles the signals of the configuration while it runs, and makes the
// program a child subreaper. It may run once at a time in a program. Children that
// the program starts itself are left alone, unless WholeProgram is set.
//
// A program that calls process.GuardMain first in main gets a guard: if the
// program is killed, the guard ends what the workers have started. Without that
// call only the workers themselves end, and the log says so.
// Source: launch_agent in torch/distributed/launcher/api.py.
func Run(ctx context.Context, cfg Config) (result *agent.Result, err error) {
	j := &job{cfg: cfg}
	defer func() { result, err = j.end() }()
	if ctx, j.err = j.start(ctx); j.err == nil {
		j.result, j.err = j.agent.Run(ctx)
	}
	return nil, nil // what end returns counts
}

// A job is this host's part of one, in Run.
type job struct {
	cfg     Config
	conf    agent.Config // filled in by what starts before the agent
	watched *observed
	calls   rendezvous.Caller // of the job's other agents
	sink    *events.Recorder
	times   *accounts.Log
	pace    *pacer
	stdout  *steady.Writer // the console
	stderr  *steady.Writer
	stop    context.CancelCauseFunc // stops the workers
	agent   *agent.Agent            // made last: with it the job begins

	parts   []part
	closing sync.WaitGroup // what ends beside other parts
	result  *agent.Result
	err     error
}

// A part of a job is something that begins before the agent runs and ends after it.
type part struct {
	Observe func(agent.Event) // gets the agent's events; nil: it wants none
	End     func()            // nil: there is nothing to end
}

func (j *job) add(p part) { j.parts = append(j.parts, p) }

// end ends what has begun, also after an error: the part that began last ends first, since it may
// use those before it. So the job ends in this order:
//
//   - The calls of other agents, which come over the rendezvous.
//   - The rendezvous, and the event that says so. The other hosts wait for this.
//   - The status page and the socket: who asks is answered until then.
//   - The template of warm starts, and commands for events, whose processes are the supervisor's.
//   - The supervisor, beside what follows.
//   - The event log, which writes to the console, and the console.
//   - The job file, which has the outcome with the errors so far.
//   - The log directory, which stays if there was an error.
//   - The signals: until here a second one hurries the job.
func (j *job) end() (*agent.Result, error) {
	for _, p := range slices.Backward(j.parts) {
		if p.End != nil {
			p.End()
		}
	}
	if own := j.cfg.Rendezvous.Handler; own != nil && j.agent == nil { // the job has not begun
		leaving, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		j.failed(own.Leave(leaving))
	}
	return j.result, j.err
}

// failed adds an error to those of the job; nil is none.
func (j *job) failed(err error) { j.err = errors.Join(j.err, err) }

// observers get the agent's events.
func (j *job) observers() []func(agent.Event) {
	all := slices.Clone(j.cfg.Records.Observers)
	for _, p := range j.parts {
		if p.Observe != nil {
			all = append(all, p.Observe)
		}
	}
	return all
}

// start starts all parts. It returns the context of the agent.
func (j *job) start(ctx context.Context) (context.Context, error) {
	if j.cfg.Rendezvous.settings == nil {
		cfg, err := Resolve(j.cfg)
		if err != nil {
			return ctx, err
		}
		j.cfg = cfg
	}
	ctx = j.handleSignals(ctx)
	template, given := j.cfg.LookupEnv(envTemplate)
	j.cfg.Env = withoutSecrets(j.cfg.Env)
	if err := j.check(ctx); err != nil {
		return ctx, err
	}
	for _, start := range []func() error{
		j.makeHandler,
		j.openLogs,
		j.openEvents,
		j.supervise,
		func() error { return j.forkWorkers(ctx, template, given) },
		j.newAgent,
	} {
		if err := start(); err != nil {
			return ctx, err
		}
	}
	j.watched.Watch(j.agent)
	j.pace.times.workers, j.pace.times.courses = j.agent.Workers, j.agent.Courses
	j.watchPace()
	if m := j.watched.metrics; m != nil {
		m.Warm, m.Times, m.Slow = j.watched.warm, j.times.Sum, j.pace.finding
		m.Watch(j.agent)
	}
	page := j.serve()
	j.watched.announce(j.stderr, page, j.conf.Logs.Dir())
	j.add(part{End: func() { j.leave(ctx) }})
	if j.calls != nil {
		if calls, err := j.calls.Calls(); err == nil {
			j.begin(health.Config{Listener: calls, Control: j.control()}) // for the job's other agents
		}
	}
	return ctx, nil
}

// handleSignals returns a context that ends with the job's signals, and with stop.
func (j *job) handleSignals(ctx context.Context) context.Context {
	ctx, hurry, restore := process.NotifyContext(ctx, j.cfg.Logger,
		slices.Concat(j.cfg.SignalsToHandle, j.cfg.PreemptionSignals)...)
	ctx, j.stop = context.WithCancelCause(ctx)
	j.conf.Hurry = hurry
	// A console that went away is a write error for the code that writes there, no reason to
	// end the job. SIGPIPE is not ignored, since workers would inherit that.
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGPIPE)
	j.add(part{End: func() {
		signal.Stop(dropped)
		j.stop(nil)
		restore()
	}})
	return ctx
}

// check finds out whether this host can take part.
func (j *job) check(ctx context.Context) (err error) {
	if err := limits.Check(j.cfg.NprocPerNode); err != nil {
		return err
	}
	start := time.Now()
	if err := j.cfg.CheckHealth(ctx); err != nil {
		return err
	}
	if j.cfg.HealthCheck != "" {
		j.cfg.Logger.Info("the health check has passed", "run_id", j.cfg.RunID, "took", time.Since(start))
	}
	if j.conf.Host, err = os.Hostname(); err != nil {
		j.conf.Host = "localhost"
	}
	return nil
}

func (j *job) makeHandler() (err error) {
	j.watched = &observed{Observer: &jobstate.Observer{}, cfg: &j.cfg, line: newWaitingLine(j.cfg.told())}
	handler := j.cfg.Rendezvous.Handler
	if handler == nil {
		if handler, err = newHandler(&j.cfg, j.conf.Host, j.watched.waiting); err != nil {
			return &ConfigError{err}
		}
	}
	if j.conf.Rendezvous = handler; j.cfg.MaxNodes > 1 {
		j.calls = handler
	}
	return nil
}

// openLogs makes the run's directory, and begins to copy the workers' output.
func (j *job) openLogs() error {
	j.add(part{End: j.closing.Wait})
	run, err := logs.New(j.cfg.Logs)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return &ConfigError{err} // Resolve cannot foresee it: /proc takes no directories
	case err != nil:
		return err
	}
	j.conf.Logs = run
	j.add(part{End: func() {
		j.failed(run.Close(j.err != nil || j.result == nil || j.result.IsFailed() || j.result.Lost != nil))
	}})
	warnOfLogDir(&j.cfg, run.Dir())
	if run.Dir() != "" {
		j.openJobFile(run.Dir())
	}
	j.times = accounts.Create(run.Dir(), j.cfg.NprocPerNode, j.cfg.Logger)
	keeper := &timekeeper{log: j.times, starts: map[int]int{}}
	j.pace = &pacer{times: keeper, log: j.cfg.Logger, caller: j.calls}
	ctx, end := context.WithCancel(context.Background())
	var lives sync.WaitGroup
	lives.Go(func() { j.times.Live(ctx) })
	j.add(part{Observe: func(e agent.Event) { keeper.observe(e); j.pace.observe(e) }, End: func() {
		end()
		lives.Wait()
		l := &j.cfg.Logs
		outcome, _ := j.outcome()
		j.times.Close(l.Dir != "" || l.Redirects.Any() || l.Tee.Any() || outcome != jobfile.Succeeded)
	}})
	stdout, stderr := run.Console()
	j.stdout, j.stderr = &steady.Writer{W: stdout}, &steady.Writer{W: stderr}
	j.add(part{End: func() {
		j.stdout.Flush(lastWords)
		j.stderr.Flush(lastWords)
	}})
	return nil
}

// watchPace begins to look how the workers get on, until the job's end.
func (j *job) watchPace() {
	if j.cfg.NoCollectives {
		return
	}
	j.pace.workers, j.watched.slow = j.agent, j.pace.slow
	if j.calls != nil {
		j.calls.Handle(paceKind, j.pace.answer)
	}
	ctx, end := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() { j.pace.run(ctx) })
	j.add(part{End: func() {
		end()
		looking.Wait()
	}})
}

// openJobFile says in the run's directory that the job runs and, at its end, how it ended. A job
// runs without the file, too.
func (j *job) openJobFile(dir string) {
	cfg := &j.cfg
	file, err := jobfile.Create(dir, jobfile.Begin{
		RunID: cfg.RunID, Title: cfg.Workers.Title, Host: j.conf.Host, PID: os.Getpid(), Started: time.Now(),
		MaxRestarts: cfg.MaxRestarts, MaxNodes: cfg.MaxNodes,
	})
	if err != nil {
		cfg.Logger.Warn("muster report and muster logs cannot tell from the log directory whether this job is running",
			"error", err)
	}
	j.add(part{End: func() {
		e := jobfile.End{Ended: time.Now()}
		e.Outcome, e.Cause = j.outcome()
		if j.result != nil {
			e.Restarts = j.result.Restarts
		}
		// In the temporary directory, the file of a success would be all that stays there.
		if err := file.End(e, cfg.Logs.Dir == "" && e.Outcome == jobfile.Succeeded); err != nil {
			cfg.Logger.Warn("cannot record in the log directory how the job ended", "error", err)
		}
	}})
}

// outcome is what became of the job on this host, as far as that is known.
func (j *job) outcome() (outcome, why string) {
	return agent.Finished{Step: agent.Step{Err: j.err}, Result: j.result}.Outcome()
}

// events says where events go. logDir is this run's, or as much as is known of it.
func (cfg *Config) events(logDir string, stderr io.Writer) *events.Config {
	r := &cfg.Records
	return &events.Config{Handler: r.EventLogHandler, Console: stderr, File: r.EventLogFile, LogDir: logDir,
		Sink: r.Events, Logger: cfg.Logger}
}

func (j *job) openEvents() (err error) {
	if j.sink, err = events.Open(*j.cfg.events(j.conf.Logs.Dir(), j.stderr)); err != nil {
		return &ConfigError{err}
	}
	j.add(part{Observe: events.Observer(j.sink), End: func() { j.failed(j.sink.Close()) }})
	return nil
}

// supervise makes the parent of all processes that the job starts, and begins to run commands for
// events.
func (j *job) supervise() error {
	log := j.cfg.Logger
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: log, Guard: true,
		WholeProgram: j.cfg.WholeProgram})
	if err != nil {
		return err
	}
	j.conf.Supervisor = supervisor
	j.add(part{End: func() {
		j.closing.Go(func() { // beside the end of the logs, which takes as long
			if err := supervisor.Close(); err != nil {
				log.Warn("the workers' cgroup stays until the next job here removes it", "error", err)
			}
		})
	}})
	for _, observe := range j.watched.observers(j.stdout) {
		j.add(part{Observe: observe})
	}
	if command := j.cfg.Records.OnEvent; command != "" {
		c := &eventCommand{command: command, env: j.cfg.Env, supervisor: supervisor, log: log,
			timeout: onEventTimeout, atEnd: onEventAtEnd}
		c.begin()
		j.add(part{Observe: c.Observe, End: func() { c.end(j.conf.Hurry) }})
	}
	return nil
}

// leave closes the rendezvous or, where this host could not take part or leaves the others, only
// leaves it: that closes the job for nobody else.
func (j *job) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	go func() {
		select {
		case <-j.conf.Hurry:
			time.AfterFunc(hurriedClose, cancel)
		case <-leaving.Done():
		}
	}()
	stopped, _ := errors.AsType[*stopError](context.Cause(ctx))
	handler := j.conf.Rendezvous
	shut, closed := handler.Leave, j.result != nil && !j.result.Left || stopped != nil && stopped.wholeJob
	if closed {
		shut = handler.Shutdown
	}
	err := shut(leaving)
	if err != nil {
		j.cfg.Logger.Warn("cannot shut the rendezvous down", "error", err)
	}
	j.sink.Record(events.EndEvent(j.cfg.RunID, j.conf.Host, closed, err))
}
