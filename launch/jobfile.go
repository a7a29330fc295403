package launch

import (
	"os"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/jobfile"
)

// beginJobFile says in the run's directory that the job runs; nil where there is no
// directory. A job runs without the file, too.
func beginJobFile(cfg *Config, dir, host string) *jobfile.Writer {
	if dir == "" {
		return nil
	}
	w, err := jobfile.Create(dir, jobfile.Begin{
		RunID: cfg.RunID, Title: cfg.Workers.Title, Host: host, PID: os.Getpid(), Started: time.Now(),
		MaxRestarts: cfg.MaxRestarts, MaxNodes: cfg.MaxNodes,
	})
	if err != nil {
		cfg.Logger.Warn("muster report and muster logs will not know from the log directory whether this job runs",
			"error", err)
	}
	return w
}

// endJobFile says how it ended. It removes the file of a job that succeeded if nothing else is
// in the temporary directory, which would stay for it.
func endJobFile(cfg *Config, w *jobfile.Writer, result *agent.Result, err error) {
	e := jobfile.End{Ended: time.Now()}
	e.Outcome, e.Cause = agent.Finished{Step: agent.Step{Err: err}, Result: result}.Outcome()
	if result != nil {
		e.Restarts = result.Restarts
	}
	if err := w.End(e, cfg.Logs.Dir == "" && e.Outcome == jobfile.Succeeded); err != nil {
		cfg.Logger.Warn("how the job ended is not in its log directory", "error", err)
	}
}
