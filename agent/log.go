package agent

import (
	"fmt"
	"log/slog"

	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/rendezvous"
)

// JobFailed is the message of the ERROR about workers that failed for good. A program that prints
// Result.Err itself may leave it out of its log.
// Source: PContext._poll in multiprocessing/api.py logs one.
const JobFailed = "the job has failed"

// logTo is the observer that logs events for an operator. What is not an event, such as a refusal
// of the store, is logged where it happens.
func logTo(log *slog.Logger, meet rendezvous.Handler) func(Event) {
	return func(e Event) {
		switch w := e.What.(type) {
		case BackingOff:
			log.Warn("waiting before the next round, as a policy rule requires", "seconds", w.Decision.Delay.Seconds(),
				"rule", w.Decision.Rule, "source", w.Decision.Source)
		case RanksAssigned:
			if r := e.Round; w.Err == nil {
				log.Info("rendezvous complete", "run_id", e.Job.RunID, "role", e.Job.Role, "round", r.Round,
					"node", r.Rank, "nodes", r.WorldSize, "world_size", e.Ranks.WorldSize,
					"master_addr", r.MasterAddr, "master_port", r.MasterPort, "agent_store", meet.UseAgentStore(),
					"restart", e.Restarts)
			}
		case FailureExplained:
			if root := w.Report.Root(); root != nil {
				log.Info("workers failed", "rank", root.Rank, "local_rank", root.LocalRank, "host", root.Host,
					"exit_code", root.ExitCode, "cause", root.Cause)
			}
		case Finished:
			if outcome, _ := w.Outcome(); outcome == jobfile.Failed && w.Err == nil {
				log.Error(JobFailed, "error", w.Result.Err(), "restarts", e.Restarts, "report", w.Result.ReportFile)
			}
		case RestartCounted:
			if w.Why != "" {
				attrs := []any{"cause", w.Why, "restart", fmt.Sprintf("%d/%d", e.Restarts, e.Job.MaxRestarts), "report", w.File}
				attrs = append(attrs, decisionAttr(w.Decision)...)
				if w.Live {
					log.Warn("live: no worker of this host is left; starting new ones, which join the group", attrs...)
				} else {
					log.Warn("restarting the worker group", attrs...)
				}
			}
		}
	}
}
