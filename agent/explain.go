package agent

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/process"
)

// An explainer finds out why workers of an attempt have failed, and reports it.
type explainer struct {
	a  *Agent
	at *attempt
}

// explain finds out why this host's workers failed; startErr is why they could
// not be started. It does so once, after they have ended: a policy, the record for the other hosts and the report must
// not differ in what they say.
func (ex *explainer) explain(startErr error) {
	if ex.at.outcome.failures != nil {
		return
	}
	var exits map[int]process.Exit
	if ex.at.outcome.res != nil {
		exits = ex.at.outcome.res.Failures
	}
	if e, ok := errors.AsType[*process.StartError](startErr); ok {
		ex.at.outcome.exits = map[int]process.Exit{e.LocalRank: {LocalRank: e.LocalRank, Code: 1, Time: time.Now()}}
		exits = ex.at.outcome.exits
	} else {
		startErr = nil
	}
	faults := sync.OnceValue(func() *evidence.GPUFaults { return ex.findFaults() })
	ex.addLosses()
	for _, localRank := range slices.Sorted(maps.Keys(exits)) {
		if slices.ContainsFunc(ex.at.outcome.failures, func(f *failure.ProcessFailure) bool { return ex.at.isOwn(f, localRank) }) {
			continue // it was to replace that one
		}
		ex.at.outcome.failures = append(ex.at.outcome.failures, ex.explainExit(exits[localRank], startErr, faults))
	}
}

// explainExit finds out why a worker failed. faults looks for those of GPUs; nil where there are
// none.
func (ex *explainer) explainExit(exit process.Exit, startErr error,
	faults func() *evidence.GPUFaults) *failure.ProcessFailure {
	localRank := exit.LocalRank
	missed, stoppedBy := ex.at.evidence.Deadline(localRank), exit.StoppedBy
	switch {
	case missed != "" && ex.at.evidence.OnlyWaited(localRank):
		missed, stoppedBy = "", syscall.SIGKILL
	case strings.HasPrefix(missed, failure.LivePrefix) && ex.at.live.broken.Load() != nil: // the loss before is the cause
	case missed != "":
		stoppedBy = 0 // it is the cause, also if its peers' end was quicker
	}
	sink, o := ex.at.team.logs.Sink(localRank), exit.Observation()
	o.Rank, o.Started, o.Host, o.Hosts = ex.at.rank(localRank), ex.at.team.began, ex.a.cfg.Host, ex.at.round.WorldSize
	o.Workers, o.StoppedBy, o.TimerExpired = ex.at.team.ranks.WorldSize, failure.Signal(stoppedBy), missed
	if o.Entrypoint = ex.a.cfg.Spec.Entrypoint; startErr != nil {
		o.Err = startErr
	}
	o.StderrTail, o.StderrPath, o.Mixed = ex.at.team.logs.StderrTail(localRank), sink.StderrPath, sink.Joined()
	o.StdoutTail, o.Waits = ex.at.team.logs.StdoutTail(localRank), ex.at.evidence.Waits(localRank, ex.at.team.began)
	o.DiskFull, o.Core = ex.at.status.diskFull, evidence.CoreOf(exit, ex.a.cfg.Host)
	if faults != nil && evidence.MayBeHardware(exit, missed, o.StderrTail) {
		o.GPU = faults().Of(exit.PID)
	}
	return failure.New(o)
}

// addLosses adds the failures after which the workers of a live group could not continue.
func (ex *explainer) addLosses() {
	b := ex.at.live.broken.Load()
	if b == nil {
		return
	}
	for _, f := range b.losses {
		ex.at.live.mu.Lock()
		x, last := ex.at.live.excluded[f.LocalRank]
		ex.at.live.mu.Unlock()
		if last && saysNothing(f) && ex.at.isOwn(f, f.LocalRank) {
			f = ex.explainExit(x, nil, nil)
		}
		ex.at.outcome.failures = append(ex.at.outcome.failures, f)
	}
}

// ownReport explains this host's failures.
func (ex *explainer) ownReport() *failure.Report {
	return failure.NewReport(ex.reportConfig(), ex.at.outcome.failures)
}

// reportConfig is what this host knows of the attempt as a whole.
func (ex *explainer) reportConfig() failure.ReportConfig {
	cfg := failure.ReportConfig{
		Title: ex.a.cfg.Spec.Title, Host: ex.a.cfg.Host, RunID: ex.a.cfg.Rendezvous.RunID(),
		Attempt: ex.a.restarts.used, Restarts: ex.a.cfg.MaxRestarts, FirstRank: ex.at.team.ranks.Base, Preempted: ex.at.status.preempted,
	}
	if ex.at.status.verdict != nil {
		cfg.Decision = ex.at.status.verdict.String()
	}
	if e := ex.at.evidence.Settled(); e != nil {
		cfg.Autopsy, cfg.AutopsyFile = e.Report.Summary(), e.File
	}
	return cfg
}

// writeReport writes the report as JSON into the attempt's log directory and
// returns the file's path; "" where there is no such directory.
func (ex *explainer) writeReport(report *failure.Report) string {
	if ex.at.team.logs == nil || ex.at.team.logs.Dir() == "" { // the job ended before its first attempt, or keeps no files
		return ""
	}
	path := filepath.Join(ex.at.team.logs.Dir(), "report.json")
	temp := filepath.Join(ex.at.team.logs.Dir(), ".report.json") // so that nobody reads half a report
	file, err := safeopen.Create(temp)
	if err == nil {
		if err = errors.Join(report.WriteJSON(file), file.Close()); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		os.Remove(temp)
		ex.a.log.Warn("cannot write the failure report", "error", err)
		return ""
	}
	return path
}

// findXids finds what the kernel says of this host's GPUs; faults of them are looked for only after a failure.
func (ex *explainer) findXids(exits map[int]process.Exit) *evidence.GPUFaults {
	var pids []int
	if ex.at.team.group != nil {
		pids = slices.Collect(maps.Values(ex.at.team.group.PIDs()))
	}
	for _, exit := range exits { // some may have left the group
		pids = append(pids, exit.PID)
	}
	return evidence.FindXids(ex.a.cfg.kernelLog, ex.at.team.began, pids)
}

// findFaults finds what the kernel and nvidia-smi say.
func (ex *explainer) findFaults() *evidence.GPUFaults {
	if ex.at.team.logs != nil && ex.at.team.logs.Dir() != "" {
		dir := ex.at.team.logs.Dir()
		ex.a.published.spawn(func() { evidence.KeepDetails(dir, ex.a.log) })
	}
	f := ex.findXids(ex.at.outcome.exits)
	f.AskDriver()
	return f
}
