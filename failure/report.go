package failure

import (
	"cmp"
	"slices"
)

// ReportConfig is what a report says about the job as a whole.
type ReportConfig struct {
	Title string // the entry point, as launch.Config.Title
	Host  string // of failures that do not name theirs
	RunID string
	// Attempt is the restart count of the attempt that failed, from 0;
	// Restarts is how many restarts were allowed.
	Attempt, Restarts int
	// Decision says which rule of a restart policy has decided what follows; empty
	// where there is no policy.
	Decision string
	// Silent are the hosts of the job that did not say how their workers ended.
	Silent []string
	// LeftOut is how many failures of other hosts are not in the report, for
	// there were too many.
	LeftOut int
	// Autopsy says what the workers of this host did when they hung, AutopsyFile
	// where the evidence is; empty where none was kept.
	Autopsy, AutopsyFile string
	// Preempted says who asked the whole job to stop; nil if nobody did. Then the
	// job has not failed, and Failures are of workers that ended by themselves.
	Preempted *Preemption
}

// A Report explains a failed attempt of a job, on all of its hosts, or one that was preempted. It does not change once made, so it may
// be read concurrently.
// Source: ChildFailedError in errors/__init__.py.
type Report struct {
	ReportConfig
	// Failures begin with the root cause. The other failures follow in the order in
	// which they happened, first those of kind Failed, then LostPeer, then Stopped.
	Failures []*ProcessFailure
}

// NewReport finds the root cause: the earliest failure of kind Failed, to the
// nanosecond. Failures that another one explains (LostPeer) come after,
// whatever their time, since a peer can notice a death before the agent does;
// workers that the agent stopped come last. A worker that had recorded its own
// error before anything else went wrong, and was stopped while it was still on
// its way out, counts as failed.
func NewReport(cfg ReportConfig, failures []*ProcessFailure) *Report {
	r := &Report{ReportConfig: cfg}
	var first *ProcessFailure // to go wrong by itself
	for _, f := range failures {
		if f != nil && f.Kind != Stopped && (first == nil || f.FailedAt.Before(first.FailedAt)) {
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
		if own.Kind == Stopped && own.File != nil && own.File.Message != "" && first != nil && own.FailedAt.Before(first.FailedAt) {
			own.Kind, own.Cause = Failed, gist(own.File.Message) // that it was stopped is no cause
			if lostPeer(own.Cause, own.Traceback) {
				own.Kind = LostPeer
			}
		}
		r.Failures = append(r.Failures, &own)
	}
	slices.SortStableFunc(r.Failures, func(a, b *ProcessFailure) int {
		return cmp.Or(a.Kind.order()-b.Kind.order(), a.FailedAt.Compare(b.FailedAt), a.Rank-b.Rank)
	})
	return r
}

func (k Kind) order() int {
	switch k {
	case Failed:
		return 0
	case LostPeer:
		return 1
	}
	return 2
}

// Root is the root cause; nil where there are no failures.
func (r *Report) Root() *ProcessFailure {
	if len(r.Failures) == 0 {
		return nil
	}
	return r.Failures[0]
}
