package agent

import (
	"fmt"
	"log/slog"
)

// logTo is the observer that logs events for an operator. What is not an event, such as a refusal
// of the store, is logged where it happens.
func logTo(log *slog.Logger) func(Event) {
	return func(e Event) {
		switch w := e.What.(type) {
		case BackingOff:
			log.Warn("waiting before the next round, as a policy rule requires", "seconds", w.Decision.Delay.Seconds(),
				"rule", w.Decision.Rule, "source", w.Decision.Source)
		case RanksAssigned:
			if r := e.Round; w.Err == nil {
				log.Info("rendezvous complete", "run_id", e.Job.RunID, "role", e.Job.Role, "round", r.Round,
					"node", r.Rank, "nodes", r.WorldSize, "world_size", e.Ranks.WorldSize,
					"master_addr", r.MasterAddr, "master_port", r.MasterPort, "restart", e.Restarts)
			}
		case FailureExplained:
			if root := w.Report.Root(); root != nil {
				log.Info("workers failed", "rank", root.Rank, "local_rank", root.LocalRank, "host", root.Host,
					"exit_code", root.ExitCode, "cause", root.Cause)
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
