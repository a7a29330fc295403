package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/limits"
	"github.com/muster-run/muster/internal/steady"
	"github.com/muster-run/muster/internal/text"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store/tcpstore"
	"github.com/muster-run/muster/timer"
)

// envFileTimer set to 1 makes the agent serve timers over a FIFO.
// Source: elastic/agent/server/local_elastic_agent.py.
const envFileTimer = "TORCHELASTIC_ENABLE_FILE_TIMER"

// envTemplate is the descriptor of a socket to a template: see warm.Server.
const envTemplate = "MUSTER_TEMPLATE"

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
	begun := false // the agent has run, and the handler is ended after it
	defer func() {
		if own := cfg.Rendezvous.Handler; own != nil && !begun {
			leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(err, own.Leave(leaving))
		}
	}()
	if cfg.Rendezvous.settings == nil {
		if cfg, err = Resolve(cfg); err != nil {
			return nil, err
		}
	}
	log := cfg.Logger
	ctx, hurry, stop := process.NotifyContext(ctx, log, slices.Concat(cfg.SignalsToHandle, cfg.PreemptionSignals)...)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// A console that went away is a write error for whoever writes there, no reason to
	// end the job. SIGPIPE is not ignored, since workers would inherit that.
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGPIPE)
	defer signal.Stop(dropped)

	template, forks := cfg.LookupEnv(envTemplate)
	cfg.Env = withoutSecrets(cfg.Env)
	if err := limits.Check(cfg.NprocPerNode); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := cfg.CheckHealth(ctx); err != nil {
		return nil, err
	}
	if cfg.HealthCheck != "" {
		log.Info("the health check has passed", "run_id", cfg.RunID, "took", time.Since(start))
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	watched := &observed{Observer: &health.Observer{}, cfg: &cfg, line: newWaitingLine(cfg.Stderr)}
	handler := cfg.Rendezvous.Handler
	if handler == nil {
		if handler, err = newHandler(cfg, *cfg.Rendezvous.settings, host, watched.waiting, log); err != nil {
			return nil, &ConfigError{err}
		}
	}
	var calls rendezvous.Caller // of the job's other agents
	if cfg.MaxNodes > 1 {
		calls, _ = handler.(rendezvous.Caller)
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	run, err := logs.New(cfg.Logs)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return nil, &ConfigError{err} // Resolve cannot foresee it: /proc takes no directories
	case err != nil:
		return nil, err
	}
	defer func() {
		keep := err != nil || result.IsFailed() || result.Lost != nil
		err = errors.Join(err, run.Close(keep))
	}()
	warnOfLogDir(&cfg, run.Dir())
	job := beginJobFile(&cfg, run.Dir(), host)
	defer func() { endJobFile(&cfg, job, result, err) }()
	console, errs := run.Console()
	stdout, stderr := &steady.Writer{W: console}, &steady.Writer{W: errs}
	defer func() {
		stdout.Flush(lastWords)
		stderr.Flush(lastWords)
	}()
	sink, err := events.Open(*cfg.events(run.Dir(), stderr))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: log, Guard: true, WholeProgram: cfg.WholeProgram})
	if err != nil {
		return nil, err
	}
	defer closing.Go(func() { // beside the end of the logs, which takes as long
		if cerr := supervisor.Close(); cerr != nil {
			log.Warn("the workers' cgroup stays until the next job here removes it", "error", cerr)
		}
	})

	observers := watched.observers(sink, stdout)
	if cfg.Records.OnEvent != "" {
		c := &eventCommand{command: cfg.Records.OnEvent, env: cfg.Env, supervisor: supervisor, log: log, timeout: onEventTimeout, atEnd: onEventAtEnd}
		c.begin()
		defer c.end(hurry)
		observers = append(observers, c.Observe)
	}
	enable, _ := cfg.LookupEnv(envFileTimer)
	timerFile, _ := cfg.LookupEnv(timer.EnvFile)
	fileTimer := enable == "1"
	var startWorkers func(process.Config) (agent.Group, error)
	var prepare func(func() process.Config) <-chan struct{}
	if forks {
		fd, err := strconv.Atoi(template)
		if err != nil {
			return nil, fmt.Errorf("%s: want a number: %w", envTemplate, err)
		}
		server, err := warm.NewServer(ctx, fd, log)
		if err != nil {
			return nil, err
		}
		defer server.Close()
		startWorkers = func(c process.Config) (agent.Group, error) {
			c.Fork = server.Fork
			return supervisor.Start(c)
		}
	} else if cfg.Workers.Warm {
		host := warm.New(ctx, warm.Config{Supervisor: supervisor, Varies: agent.SetsVariable, Logger: log})
		defer host.Close()
		prepare, watched.warm = host.Prepare, host.Stats
		startWorkers = func(c process.Config) (agent.Group, error) { return host.Start(c) }
	}
	a, err := agent.New(agent.Config{
		Spec: agent.Spec{
			Role:           cfg.Workers.Role,
			LocalWorldSize: cfg.NprocPerNode,
			Entrypoint:     cfg.Workers.Entrypoint,
			Func:           cfg.Workers.Func,
			Input:          cfg.Workers.Input,
			Args:           cfg.Workers.arguments(host),
			Env:            workerEnv(cfg),
			CPUs:           cfg.Workers.CPUs,
			Title:          cfg.Workers.Title,
		},
		Rendezvous:             handler,
		Supervisor:             supervisor,
		Start:                  startWorkers,
		Prepare:                prepare,
		Logs:                   run,
		Env:                    cfg.Env,
		Host:                   host,
		Options:                cfg.Options,
		UninterruptibleTimeout: uninterruptibleTimeout(&cfg),
		FileTimer:              fileTimer,
		TimerFile:              timerFile,
		IdenticalWorkers:       identicalWorkers(&cfg),
		Hurry:                  hurry,
		Observers:              observers,
		Logger:                 log,
	})
	if err != nil {
		return nil, err
	}
	watched.watch(a)
	page, hangUp, stopServing := watched.serve(host, &control{a, end, log}, calls)
	defer stopServing()
	watched.announce(stderr, page, run.Dir())
	begun = true
	result, err = a.Run(ctx)
	hangUp()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	go func() {
		select {
		case <-hurry:
			time.AfterFunc(hurriedClose, cancel)
		case <-leaving.Done():
		}
	}()
	// A host that could not take part closes the job for nobody else.
	stopped, _ := errors.AsType[*stopError](context.Cause(ctx))
	shut, closed := handler.Leave, result != nil && !result.Left || stopped != nil && stopped.wholeJob
	if closed {
		shut = handler.Shutdown
	}
	cerr := shut(leaving)
	if cerr != nil {
		log.Warn("cannot shut the rendezvous down", "error", cerr)
	}
	sink.Record(events.EndEvent(cfg.RunID, host, closed, cerr))
	return result, err
}

// closeTimeout bounds closing the rendezvous at the end of a job, where other hosts may be busy, or
// stop their workers.
const closeTimeout = 30 * time.Second

// hurriedClose is the same after a second signal.
const hurriedClose = 5 * time.Second

// lastWords is how long a console may take nothing of what waits for it at the end.
const lastWords = time.Second

// newHandler makes the rendezvous that Resolve chose.
func newHandler(cfg Config, settings rendezvous.Settings, host string, waiting func(rendezvous.Waiting), log *slog.Logger) (rendezvous.Handler, error) {
	for _, key := range slices.Sorted(maps.Keys(settings.Unknown)) {
		hint := "`muster help run` names the keys"
		if meant := settings.Unknown[key]; meant != "" {
			hint = "did you mean " + meant + "?"
		}
		log.Warn("the backend does not read this key of --rdzv-conf, so it has no effect", "key", key, "backend", cfg.Rendezvous.Backend, "hint", hint)
	}
	if cfg.MaxNodes > 1 && cfg.meetsAtLoopback() {
		log.Warn("the endpoint is a loopback address, so no other host can join, only agents of this host; name a host of the job with --rdzv-endpoint or --master-addr", "endpoint", cfg.Rendezvous.Endpoint)
	}
	noShare, _ := cfg.LookupEnv(envNoSharedStore)
	spec := rendezvous.Spec{
		RunID:            cfg.RunID,
		Endpoint:         cfg.Rendezvous.Endpoint,
		MinNodes:         cfg.MinNodes,
		MaxNodes:         cfg.MaxNodes,
		NodeRank:         cfg.Rendezvous.NodeRank,
		Role:             cfg.Workers.Role,
		LocalWorldSize:   cfg.NprocPerNode,
		Host:             host,
		LocalAddr:        cfg.Rendezvous.LocalAddr,
		PrivateStore:     noShare == "1",
		LocalStore:       cfg.Rendezvous.Store == StoreLocal,
		Live:             cfg.Live,
		IdenticalWorkers: identicalWorkers(&cfg),
		Conns:            &tcpstore.Limit{Max: limits.Connections(cfg.NprocPerNode)},
		OnWaiting:        waiting,
		Settings:         settings,
		Logger:           log,
	}
	backend, err := FindBackend(cfg.Rendezvous.Backend)
	if err != nil {
		return nil, err
	}
	if cfg.Rendezvous.Backend == etcdV2 {
		log.Warn("the rendezvous backend etcd-v2 speaks etcd's v3 API here; agents of PyTorch cannot take part")
	}
	return backend.New(spec)
}

// identicalWorkers says whether agents assign ranks without asking each other.
func identicalWorkers(cfg *Config) bool {
	value, _ := cfg.LookupEnv("TORCH_ELASTIC_WORKER_IDENTICAL")
	return value == "1"
}

// arguments returns each worker's arguments.
func (w *Workers) arguments(host string) func(localRank, rank int) []string {
	return func(localRank, rank int) []string {
		if w.TorchrunMacros {
			return text.Substitute(w.Args, localRank, nil)
		}
		return text.Substitute(w.Args, localRank, map[string]string{"rank": strconv.Itoa(rank), "role_name": w.Role, "hostname": host})
	}
}

// workerEnv returns the variables of each worker that the launcher, not the
// agent, knows.
// Source: LocalElasticAgent._start_workers, run in torch/distributed/run.py.
func workerEnv(cfg Config) func(localRank int) map[string]string {
	common := map[string]string{"TORCHELASTIC_SIGNALS_TO_HANDLE": cfg.SignalsText}
	if cfg.Workers.OMPNumThreads != "" {
		common["OMP_NUM_THREADS"] = cfg.Workers.OMPNumThreads
	}
	return func(localRank int) map[string]string {
		env := maps.Clone(common)
		if cfg.Workers.VirtualLocalRank {
			// Resolve has checked every local rank.
			virtual, _ := virtualLocalRankEnv(cfg.LookupEnv, localRank)
			maps.Copy(env, virtual)
		}
		return env
	}
}

// uninterruptibleTimeout reads TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
// seconds. Anything else than a positive number turns the check off, as in
// torchrun.
func uninterruptibleTimeout(cfg *Config) time.Duration {
	text, _ := cfg.LookupEnv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0) || seconds > 1e9 {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
