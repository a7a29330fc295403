package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/agent/internal/link"
	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/timer"
)

// A runner starts the workers of an attempt, waits for their end, and stops them.
type runner struct {
	a  *Agent
	at *attempt
}

func (w *runner) startWorkers() error {
	w.at.team.began = time.Now()
	spec := &w.a.cfg.Spec
	workers := make([]logs.Worker, spec.LocalWorldSize)
	for i := range workers {
		workers[i] = logs.Worker{LocalRank: i, Rank: w.at.team.ranks.Base + i, Role: spec.Role}
	}
	var err error
	if w.at.team.logs, err = w.a.cfg.Logs.Attempt(w.a.restarts.used, workers); err != nil {
		w.at.team.logs = &logs.Attempt{}
		return err
	}
	cfg := w.workers(w.a.restarts.used)
	if w.a.live != nil {
		w.at.team.logs.KeepOpen()
		for i := range workers {
			maps.Copy(cfg.Envs[i], w.a.live.Env(i))
		}
	}
	group, err := w.a.startChecked(cfg)
	started := WorkersStarted{Step: Step{w.at.team.began, err}, Live: w.a.live != nil}
	if err == nil { // else group may be a nil *process.Group
		w.at.team.group, w.at.team.parts, started.PIDs = group, &parts{of: map[int]roundPart{}}, group.PIDs()
		w.a.published.part(w.at, nil)
		w.a.published.ran(w.at)
	}
	w.a.emit(w.at, started)
	return err
}

// workers describes the workers of an attempt.
func (w *runner) workers(restarts int) process.Config {
	spec := &w.a.cfg.Spec
	cfg := process.Config{
		Name:       spec.Role,
		Entrypoint: spec.Entrypoint,
		Func:       spec.Func,
		Envs:       make(map[int]map[string]string, spec.LocalWorldSize),
		Env:        w.a.cfg.Env,
		Logs:       w.at.team.logs,
		CPUs:       spec.CPUs,
		Grace:      w.a.cfg.ShutdownTimeout,
		Leftovers: process.Leftovers{NoRestart: w.a.restarts.leftAfter(restarts) <= 0,
			HelperTimeout: w.a.cfg.HelperTimeout},
		UninterruptibleTimeout: w.a.cfg.UninterruptibleTimeout,
		Apart:                  w.a.live != nil,
		Logger:                 w.a.log,
	}
	if w.a.cfg.AutopsyTimeout > 0 {
		cfg.Unheeded = func(ctx context.Context, pids map[int]int) {
			w.at.evidence.Collect(ctx, "workers do not end after the signal to stop", pids, true)
		}
	}
	if w.a.evidence.Witness != nil {
		cfg.BeforeStop = func(failed []process.Exit, pids map[int]int) {
			for _, x := range failed {
				if !evidence.MayBeCollective(x, w.at.team.logs.StderrTail(x.LocalRank)) {
					return
				}
			}
			w.at.evidence.AskBeforeStop(w.at.run.life, pids)
		}
	}
	if spec.Input != nil {
		cfg.Inputs = make(map[int][]byte, spec.LocalWorldSize)
	} else {
		cfg.Args = make(map[int][]string, spec.LocalWorldSize)
	}
	for i := range spec.LocalWorldSize {
		if spec.Input != nil {
			cfg.Inputs[i] = spec.Input(i)
		} else {
			cfg.Args[i] = spec.Args(i, w.at.team.ranks.Base+i)
		}
		cfg.Envs[i] = w.workerEnv(restarts, i)
		if w.a.live != nil { // startWorkers says which worker it is
			cfg.Envs[i][link.SocketVar], cfg.Envs[i][link.IDVar] = w.a.live.Path(), ""
		}
	}
	return cfg
}

// workerEnv is what a worker's environment has on top of the inherited one.
// Source: LocalElasticAgent._start_workers.
func (w *runner) workerEnv(restarts, localRank int) map[string]string {
	useAgentStore := "False"
	if w.a.cfg.Rendezvous.UseAgentStore() {
		useAgentStore = "True"
	}
	env := map[string]string{
		"LOCAL_RANK":                   strconv.Itoa(localRank),
		"RANK":                         strconv.Itoa(w.at.team.ranks.Base + localRank),
		"GROUP_RANK":                   strconv.Itoa(w.at.round.Rank),
		"ROLE_RANK":                    strconv.Itoa(w.at.team.ranks.RoleBase + localRank),
		"ROLE_NAME":                    w.a.cfg.Spec.Role,
		"LOCAL_WORLD_SIZE":             strconv.Itoa(w.a.cfg.Spec.LocalWorldSize),
		"WORLD_SIZE":                   strconv.Itoa(w.at.team.ranks.WorldSize),
		"GROUP_WORLD_SIZE":             strconv.Itoa(w.at.round.WorldSize),
		"ROLE_WORLD_SIZE":              strconv.Itoa(w.at.team.ranks.RoleWorldSize),
		"MASTER_ADDR":                  w.at.round.MasterAddr,
		"MASTER_PORT":                  strconv.Itoa(w.at.round.MasterPort),
		"TORCHELASTIC_RESTART_COUNT":   strconv.Itoa(restarts),
		"TORCHELASTIC_MAX_RESTARTS":    strconv.Itoa(w.a.cfg.MaxRestarts),
		"TORCHELASTIC_RUN_ID":          w.a.cfg.Rendezvous.RunID(),
		"TORCHELASTIC_USE_AGENT_STORE": useAgentStore,
		"TORCHELASTIC_ERROR_FILE":      w.at.team.logs.Sink(localRank).ErrorFile,
	}
	// NCCL's errors end a worker, unless the environment says something else.
	base := w.a.cfg.Env
	if base == nil {
		base = os.Environ()
	}
	if !slices.ContainsFunc(base, func(entry string) bool { return strings.HasPrefix(entry, asyncErrorsVar+"=") }) {
		env[asyncErrorsVar] = "1"
	}
	if w.a.cfg.TimerFile != "" {
		env[timer.EnvFile] = w.a.cfg.TimerFile
	}
	w.a.watchdog.Load().env(env)
	if w.a.evidence.Witness != nil {
		w.witnessEnv(base, env)
	}
	if w.a.cfg.Spec.Env != nil {
		maps.Copy(env, w.a.cfg.Spec.Env(localRank))
	}
	return env
}

// flightVars say where NCCL's flight recorder has its pipe and its file: what they have is the
// beginning of the path, and the rank follows.
var flightVars = []string{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"}

// witnessEnv adds what lets the agent ask for the worker's flight recorder. What the user has set stays.
func (w *runner) witnessEnv(base []string, env map[string]string) {
	env["PYTHONPATH"] = w.a.evidence.Witness.PythonPath(base)
	isSet := func(name string) bool {
		return slices.ContainsFunc(base, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	}
	dir := w.a.cfg.Logs.Dir() // the same in all attempts, so that one template of --warm does for them
	if dir == "" || isSet(flightVars[1]) || isSet(flightVars[2]) {
		return
	}
	for _, name := range flightVars {
		if !isSet(name) {
			env[name] = dir + autopsy.FlightName
		}
	}
}

// startGroup starts the workers.
func (w *runner) startGroup(ctx context.Context) news {
	w.at.status.phase = decide.Running
	w.a.armWatchdog()
	had := w.a.kept != nil
	if had {
		w.at.live.adopt()
	} else {
		if w.a.live != nil {
			w.a.live.Look(func(s *link.State) { s.Over = false })
		}
		if err := w.startWorkers(); err != nil {
			w.finishLogs(ctx)
			return w.notStarted(err)
		}
	}
	if w.a.live != nil {
		w.at.live.formed.Store(w.a.carried)
		w.a.carried = nil
		change := w.a.live.LastChange()
		w.at.run.wg.Go(func() { w.at.live.form(change, had) })
	}
	if w.a.cfg.HangTimeout != 0 {
		w.at.run.wg.Go(func() { w.at.evidence.WatchProgress(w.at.run.life, w.at.run.ended, peers.FailedKey) })
	}
	w.at.run.wg.Go(func() {
		// It has no deadline: the group ends by itself, or because it is stopped.
		life, cancel := context.WithCancel(context.WithoutCancel(w.at.run.life))
		defer cancel()
		w.at.run.wg.Go(func() {
			select {
			case <-w.at.live.released:
				cancel()
			case <-life.Done():
			}
		})
		res, err := w.at.team.group.Wait(life)
		if err == nil {
			res = w.at.withoutExcluded(res)
			w.at.outcome.res, w.at.outcome.exits = res, res.Exits
			w.a.published.ended(res.Exits)
		}
		if !w.at.live.kept.Load() {
			close(w.at.run.ended)
		}
	})
	w.at.run.wg.Go(func() {
		select {
		case <-w.a.cfg.Hurry:
			w.at.team.group.Kill()
		case <-w.at.run.ended:
		case <-w.at.live.released:
		}
	})
	if !w.at.alone() {
		w.at.run.wg.Go(func() { w.at.notify.hear() })
	}
	return news{ev: decide.EvStarted}
}

// notStarted reports whether another attempt may succeed.
func (w *runner) notStarted(err error) news {
	if !isShortage(err) {
		return news{ev: decide.EvStartFailed, err: err}
	}
	if _, ok := errors.AsType[*process.StartError](err); !ok {
		err = &process.StartError{Path: w.a.cfg.Spec.Entrypoint, Err: err}
	}
	w.at.why.explain(err)
	w.at.outlives(startPause)
	return news{ev: decide.EvFailed, err: err}
}

// groupEnded says how the workers ended by themselves.
func (w *runner) groupEnded(ctx context.Context) news {
	w.finishLogs(ctx)
	switch {
	case w.at.outcome.res.Uninterruptible:
		return news{ev: decide.EvUnhealthy}
	case !w.at.outcome.res.IsFailed():
		return news{ev: decide.EvSucceeded}
	case w.a.isToldLast(ctx, slices.Collect(maps.Values(w.at.outcome.res.Failures))...):
		return news{ev: decide.EvSignal}
	}
	if w.at.why.explain(nil); w.at.status.phase == decide.Running && !w.at.alone() && onlyLostPeers(w.at.outcome.failures) {
		return news{ev: decide.EvLostPeers}
	}
	return news{ev: decide.EvFailed}
}

// stopWorkers stops the workers, if they run, and returns when they have ended and
// all that they wrote has gone where it should.
func (w *runner) stopWorkers(ctx context.Context, sig syscall.Signal) {
	if w.at.team.group == nil || w.at.status.phase != decide.Running && w.at.status.phase != decide.Failing {
		return
	}
	began := time.Now()
	w.at.team.group.Close(sig, w.a.cfg.ShutdownTimeout) // what it could not end is in the exits
	<-w.at.run.ended
	w.a.emit(w.at, WorkersStopped{time.Since(began)})
	w.finishLogs(ctx)
}

// finishLogs ends the attempt's logs and timers once its workers have ended, and brings all that
// they wrote to the console. A stuck console may hold it up only until the job is stopped.
func (w *runner) finishLogs(ctx context.Context) {
	if w.at.status.flushed {
		return
	}
	w.at.status.flushed = true
	w.a.disarmWatchdog()
	flush, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(closeTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.a.cfg.Hurry:
		case <-flush.Done():
		}
		cancel()
	})
	defer stop()
	stats, err := w.at.team.logs.Finish(flush)
	if stats.DiskFull {
		w.at.status.diskFull = w.a.cfg.Logs.Dir()
	}
	if err != nil || stats.LostBytes > 0 {
		w.a.log.Warn("worker output was lost", "bytes", stats.LostBytes, "error", err)
	}
}
