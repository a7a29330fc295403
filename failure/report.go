package failure

import (
	"cmp"
	"fmt"
	"slices"
)

// reportVersion is the Version of a Report. It changes when a field changes its
// meaning or goes away, not when one is added.
const reportVersion = 1

// ReportConfig is what a report says about the job as a whole.
type ReportConfig struct {
	Title string `json:"title,omitempty"` // the entry point, as launch.Config.Title
	RunID string `json:"run_id,omitempty"`
	Host  string `json:"host,omitempty"` // of failures that do not name theirs
	// Attempt is the restart count of the attempt that failed, from 0;
	// Restarts is how many restarts were allowed.
	Attempt  int `json:"attempt"`
	Restarts int `json:"max_restarts"`
	// FirstRank is the rank of this host's local rank 0; -1: not known.
	FirstRank int `json:"first_rank"`
	// Silent are the hosts of the job that did not say how their workers ended.
	Silent []string `json:"silent,omitempty"`
	// Autopsy says what the workers did when they hung, AutopsyFile
	// where the evidence is; empty where none was kept.
	Autopsy     string `json:"autopsy,omitempty"`
	AutopsyFile string `json:"autopsy_file,omitempty"`
	// LeftOut is how many failures of other hosts are not in the report, for
	// there were too many.
	LeftOut int `json:"left_out"`
	// Preempted says who asked the whole job to stop; nil if nobody did. Then the
	// job has not failed, and Failures are of workers that ended by themselves.
	Preempted *Preemption `json:"preempted,omitempty" pyjson:"optional"`
	// Decision says which rule of a restart policy has decided what follows; empty
	// where there is no policy.
	Decision string `json:"decision,omitempty" pyjson:"optional"`
}

// A Report explains a failed attempt of a job, on all of its hosts, or one that was
// preempted. It is also the document report.json; docs/formats.md has its fields. It
// does not change once made, so it may be read concurrently.
// Source: ChildFailedError in errors/__init__.py.
type Report struct {
	Version int `json:"version"`
	ReportConfig
	// Cause is the root cause in one line, with rank and host; without one, who
	// preempted the job.
	Cause string `json:"cause,omitempty"`
	// Failures are in the order of their kinds: those that are the worker's own doing, those
	// of a lost peer, workers that the agent stopped; and in the order of time within one.
	// The first is the root cause.
	Failures []*ProcessFailure `json:"failures"`
}

// NewReport sorts the failures and finds the root cause: the earliest failure that is the
// worker's own doing. A failure that another one explains comes after, whatever its time,
// since a worker can notice the death of another before the agent does. A worker that had
// recorded an error of its own before anything else went wrong, and was stopped before it
// could end, counts as failed.
func NewReport(cfg ReportConfig, failures []*ProcessFailure) *Report {
	r := &Report{Version: reportVersion, ReportConfig: cfg}
	if cfg.Preempted != nil {
		p := *cfg.Preempted
		p.ExitStatus = PreemptedStatus
		r.Preempted = &p
	}
	var first *ProcessFailure // to go wrong by itself
	for _, f := range failures {
		if f != nil && !f.Stopped() && (first == nil || f.FailedAt.Before(first.FailedAt)) {
			first = f
		}
	}
	for _, f := range failures {
		if f == nil {
			continue
		}
		own := *f
		if own.Host == "" {
			own.Host = cfg.Host
		}
		if own.Stopped() && own.Recorded && first != nil && own.FailedAt.Before(first.FailedAt) {
			var lost bool
			own.Kind = failed // that it was stopped is not a cause
			if own.Cause, lost = recorded(own.Message, own.Traceback); lost {
				own.Kind = lostPeer
			}
		}
		own.Root = false
		r.Failures = append(r.Failures, &own)
	}
	blame(r.Failures)
	slices.SortStableFunc(r.Failures, func(a, b *ProcessFailure) int {
		return cmp.Or(slices.Index(kinds[:], a.Kind)-slices.Index(kinds[:], b.Kind), a.FailedAt.Compare(b.FailedAt),
			cmp.Compare(a.Rank, b.Rank))
	})
	if root := r.Root(); root != nil {
		root.Root = true
		r.Cause = root.Error()
	} else if r.Preempted != nil {
		r.Cause = "preempted: " + cfg.Preempted.String()
	}
	return r
}

// CheckVersion returns an error if a newer muster has written the report, in which
// some fields may mean something else.
func (r *Report) CheckVersion() error {
	if r.Version > reportVersion {
		return fmt.Errorf("report.json is of version %d; this muster knows %d and shows what it can", r.Version,
			reportVersion)
	}
	return nil
}

// Root is the root cause; nil where there are no failures.
func (r *Report) Root() *ProcessFailure {
	if len(r.Failures) == 0 {
		return nil
	}
	return r.Failures[0]
}
