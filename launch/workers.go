package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/files/execpath"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/timer"
)

// EnvFileTimer names the environment variable that, set to 1, makes Run serve timers over a FIFO.
// Source: elastic/agent/server/local_elastic_agent.py.
const EnvFileTimer = "TORCHELASTIC_ENABLE_FILE_TIMER"

// envTemplate is the descriptor of a socket to a template: see warm.Server.
const envTemplate = "MUSTER_TEMPLATE"

// forkWorkers has the workers be forks of a template, if there is one: of another program, which
// template is the descriptor of, or of this job's own.
func (j *job) forkWorkers(ctx context.Context, template string, given bool) error {
	supervisor, log := j.conf.Supervisor, j.cfg.Logger
	switch {
	case j.cfg.Workers.Start != nil:
		j.conf.Start = func(c process.Config) (agent.Group, error) { return j.cfg.Workers.Start(supervisor, c) }
	case given:
		fd, err := strconv.Atoi(template)
		if err != nil {
			return fmt.Errorf("%s: want a number: %w", envTemplate, err)
		}
		server, err := warm.NewServer(ctx, fd, log)
		if err != nil {
			return err
		}
		j.add(part{End: func() { server.Close() }})
		j.conf.Start = func(c process.Config) (agent.Group, error) {
			c.Fork = server.Fork
			return supervisor.Start(c)
		}
	case j.cfg.Workers.Warm:
		host := warm.New(ctx, warm.Config{Supervisor: supervisor, Varies: agent.SetsVariable, Logger: log})
		j.add(part{End: func() { host.Close() }})
		j.conf.Prepare, j.watched.warm = host.Prepare, host.Stats
		if !j.cfg.Live && j.cfg.MinNodes == j.cfg.MaxNodes { // nobody trains without this host
			j.conf.Prepare = func(workers func() process.Config) <-chan struct{} { host.Prepare(workers); return nil }
		}
		j.conf.Start = func(c process.Config) (agent.Group, error) { return host.Start(c) }
	}
	return nil
}

// newAgent makes the agent of all that has begun.
func (j *job) newAgent() (err error) {
	cfg, c := &j.cfg, &j.conf
	c.Spec = agent.Spec{
		Role:           cfg.Workers.Role,
		LocalWorldSize: cfg.NprocPerNode,
		Entrypoint:     cfg.Workers.Entrypoint,
		Func:           cfg.Workers.Func,
		Input:          cfg.Workers.Input,
		Args:           cfg.Workers.arguments(c.Host),
		Env:            workerEnv(cfg),
		CPUs:           cfg.Workers.CPUs,
		Title:          cfg.Workers.Title,
	}
	c.Env, c.Options, c.Logger = cfg.Env, cfg.Options, cfg.Logger
	c.UninterruptibleTimeout, c.IdenticalWorkers = uninterruptibleTimeout(cfg), identicalWorkers(cfg)
	enable, _ := cfg.LookupEnv(EnvFileTimer)
	c.FileTimer = enable == "1"
	if _, nested := cfg.LookupEnv("TORCHELASTIC_RUN_ID"); !nested { // then the FIFO is the outer agent's
		c.TimerFile, _ = cfg.LookupEnv(timer.EnvFile)
	}
	c.Observers = j.observers()
	j.agent, err = agent.New(*c)
	return err
}

// identicalWorkers reports whether agents assign ranks without asking each other.
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
		return text.Substitute(w.Args, localRank,
			map[string]string{"rank": strconv.Itoa(rank), "role_name": w.Role, "hostname": host})
	}
}

// workerEnv returns the variables of each worker that the launcher, not the
// agent, knows.
// Source: LocalElasticAgent._start_workers, run in torch/distributed/run.py.
func workerEnv(cfg *Config) func(localRank int) map[string]string {
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

// checkWorker says why no worker could run.
func (cfg *Config) checkWorker() error {
	switch {
	case cfg.Workers.Func == "" && cfg.Workers.Input != nil:
		return errors.New("Workers.Input is for functions; a program has Args")
	case cfg.Workers.Start != nil && cfg.Workers.Entrypoint != "" && cfg.Workers.Func == "":
		return nil
	case cfg.Workers.Func == "":
		return checkEntrypoint(cfg.Workers.Entrypoint, cfg.LookupEnv)
	case cfg.Workers.Entrypoint != "" || len(cfg.Workers.Args) > 0:
		return errors.New("a worker needs an Entrypoint, with Args, or a Func, with Input, and not both")
	}
	return process.CheckFunc(cfg.Workers.Func)
}

func checkEntrypoint(name string, lookup func(string) (string, bool)) error {
	_, err := execpath.Find(name, lookup)
	from, hint := "", "; give the path of a program"
	if python, _ := lookup("PYTHON_EXEC"); python == name && name != "" {
		from, hint = "PYTHON_EXEC: ", "; set PYTHON_EXEC to an interpreter, or unset it"
	}
	info, missing := os.Stat(name)
	switch {
	case err == nil:
		return nil
	case name == "":
		return errors.New("no program is given; give the path of one, as Workers.Entrypoint, or a function, as Workers.Func")
	case !errors.Is(err, fs.ErrNotExist) && (missing != nil || !info.IsDir()):
		hint = "; chmod +x it, or let an interpreter run it"
	case errors.Is(err, fs.ErrNotExist) && missing == nil:
		hint = "; write ./" + name + " for the file in this directory"
	}
	return fmt.Errorf("%scannot run %s: %w%s", from, name, err, hint)
}
