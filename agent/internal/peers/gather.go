package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/rendezvous"
)

// Bounds of what goes through the store, in bytes.
const (
	rootLimit      = 16 << 10 // the root cause in a record
	maxRecord      = 64 << 10 // a record with it
	hostLimit      = 64 << 10 // one host's failures
	reportLimit    = 1 << 20  // those of all hosts
	reportElements = 1 << 18  // of all lists in these
)

// hostFailures is what a node publishes.
type hostFailures struct {
	Failures json.RawMessage `json:"failures"` // as failure.Encode has them
	LeftOut  int             `json:"left_out"` // how many there was no room for
}

// JobFailures is what the node of the record has gathered. The others read it
// instead of gathering for themselves, so that the traffic grows with the number
// of nodes and not with its square.
type JobFailures struct {
	hostFailures
	Silent  []string `json:"silent"`
	Readers int      `json:"readers"` // nodes that are known to wait for it
}

// publish sets how this host's workers failed, for the node of the record.
func (r *Round) publish(ctx context.Context, own *failure.Report) error {
	var host hostFailures
	host.Failures, host.LeftOut = failure.Encode(own.Failures, r.ClockOffset, hostLimit)
	text, err := json.Marshal(host)
	if err != nil {
		return err
	}
	return r.Store.Set(ctx, fmt.Sprint(failuresPrefix, r.Rank), text)
}

// introduction is how long the report waits for agents that have not set their agentPrefix.
const introduction = 200 * time.Millisecond

// Gather makes the report of the job from what all its hosts publish, and hands it out to
// them. It waits for hosts that are not known to be gone: it adds those that changes tell of, which the caller must
// not read meanwhile. own has this host's failures.
func (r *Round) Gather(ctx context.Context, own *failure.Report, failures []*failure.ProcessFailure, gone map[int]bool,
	changes <-chan rendezvous.Change) *failure.Report {
	// The others wait for the report as long as PeerTimeout, so it has to be there
	// before that.
	waiting, cancel := context.WithTimeout(ctx, r.Timeout*3/4)
	defer cancel()
	// An agent of ours sets its key once its workers run, and some may be starting them now.
	// A torch agent never sets it.
	keys := make([]string, r.WorldSize)
	for i := range keys {
		keys[i] = fmt.Sprint(agentPrefix, i)
	}
	soon, cancel := context.WithTimeout(waiting, introduction)
	_ = r.Store.Wait(soon, keys...)
	cancel()
	ours := make([]bool, r.WorldSize)
	for i := range ours {
		var err error
		if ours[i], err = r.Store.Check(waiting, keys[i]); err != nil {
			r.Log.Warn("cannot collect the failures of the other hosts", "error", err)
			own.Silent = []string{"all other hosts"}
			return own
		}
	}
	r.awaitFailures(waiting, ours, gone, changes)
	// Those that have come are read even if no time is left to wait for others.
	ctx, cancel = context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	cfg, all, readers := own.ReportConfig, slices.Clone(failures), 0
	for i := range ours {
		if i == r.Rank {
			continue
		}
		list, left, err := r.failuresOf(ctx, i)
		if err != nil {
			why := ""
			switch {
			case gone[i]:
				why = ", lost"
			case !ours[i]:
				why = ", not known to run muster"
			}
			cfg.Silent = append(cfg.Silent, r.NodeName(ctx, i)+why)
			continue
		}
		readers++
		cfg.LeftOut += left
		for _, f := range list {
			if !slices.ContainsFunc(all, func(known *failure.ProcessFailure) bool {
				return known.Rank == f.Rank && known.PID == f.PID && known.Host == f.Host
			}) {
				all = append(all, f) // a loss that others knew, too, is in all
			}
		}
	}
	report := failure.NewReport(cfg, all)
	r.handOut(ctx, report, readers)
	return report
}

// awaitFailures waits until all of our agents that are still there have published.
func (r *Round) awaitFailures(ctx context.Context, ours []bool, gone map[int]bool, changes <-chan rendezvous.Change) {
	for {
		var keys []string
		for i := range ours {
			if ours[i] && i != r.Rank && !gone[i] {
				keys = append(keys, fmt.Sprint(failuresPrefix, i))
			}
		}
		if len(keys) == 0 {
			return
		}
		// A host that is gone ends the wait, and another begins without its key.
		wait, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Store.Wait(wait, keys...) // what is missing will be seen
		}()
		again := false
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case c, ok := <-changes:
				switch {
				case !ok:
					changes = nil
				case c.Kind == rendezvous.Disconnected:
					over = true
				case c.Kind == rendezvous.NodeLost || c.Kind == rendezvous.NodeLeft:
					gone[c.Rank] = true
					over, again = true, true
				}
			}
		}
		cancel()
		<-done
		if !again {
			return
		}
	}
}

// failuresOf returns what a node has published, and how many failures that leaves out.
func (r *Round) failuresOf(ctx context.Context, groupRank int) (list []*failure.ProcessFailure, left int, err error) {
	text, err := lookUp(ctx, r.Store, fmt.Sprint(failuresPrefix, groupRank))
	if err != nil {
		return nil, 0, err
	}
	if text == nil {
		return nil, 0, fmt.Errorf("node %d has not answered", groupRank)
	}
	var host hostFailures
	if len(text) > 2*hostLimit {
		err = fmt.Errorf("%d bytes, more than %d", len(text), 2*hostLimit)
	} else if err = json.Unmarshal(text, &host); err == nil {
		list, err = failure.Decode(host.Failures, r.ClockOffset)
	}
	if err != nil {
		r.Log.Warn("cannot read another host's report of its failures", "group_rank", groupRank, "error", err)
	}
	return list, max(0, host.LeftOut), err
}

// handOut gives the report to the other hosts and waits until they have it, since
// the store may end with this agent.
func (r *Round) handOut(ctx context.Context, report *failure.Report, readers int) {
	job := JobFailures{Silent: report.Silent, Readers: readers}
	job.Failures, job.LeftOut = failure.Encode(report.Failures, r.ClockOffset, reportLimit)
	job.LeftOut += report.LeftOut
	text, err := json.Marshal(job)
	if err == nil {
		err = r.Store.Set(ctx, reportKey, text)
	}
	if err == nil && readers > 0 {
		err = r.Store.Wait(ctx, readKey)
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("cannot pass the job's report to the other hosts", "error", err)
	}
}

// Fetch begins to wait for the report that the node of the record makes, and sends it on the
// channel, which it closes when its goroutine ends.
func (r *Round) Fetch(ctx context.Context) <-chan *JobFailures {
	got := make(chan *JobFailures, 1)
	go func() {
		defer close(got)
		s := r.Store
		text, err := Await(ctx, s, reportKey)
		if err != nil {
			return
		}
		var job JobFailures
		if err := Decode(reportKey, text, 2*reportLimit, reportElements, &job); err != nil {
			r.Log.Warn("cannot read the job's report, which another host made", "bytes", len(text), "error", err)
			return
		}
		got <- &job
		if have, err := s.Add(ctx, readKey+"/count", 1); err == nil && have >= int64(job.Readers) {
			_ = s.Set(ctx, readKey, []byte("1"))
		}
	}()
	return got
}

// JobReport is the report of a job that failed on another host: what that host
// has gathered, or, if that does not come, its record.
func (r *Round) JobReport(ctx context.Context, own *failure.Report, failures []*failure.ProcessFailure, rec *Record,
	fetched <-chan *JobFailures) *failure.Report {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	cfg := own.ReportConfig
	if err := r.publish(ctx, own); err != nil {
		r.Log.Warn("cannot tell the other hosts how this host's workers ended", "error", err)
	}
	var others []*failure.ProcessFailure
	var job *JobFailures
	select {
	case job = <-fetched:
	case <-ctx.Done():
	}
	var err error
	if job != nil {
		cfg.LeftOut = job.LeftOut
		me := r.NodeName(ctx, r.Rank)
		cfg.Silent = slices.DeleteFunc(job.Silent, func(name string) bool { return name == me })
		others, err = failure.Decode(job.Failures, r.ClockOffset)
	} else {
		cfg.Silent = []string{"all hosts, for the job's report: " + rec.Host + " did not send it in time"}
	}
	if err != nil {
		r.Log.Warn("cannot read the job's report, which another host made", "error", err)
	}
	if (job == nil || err != nil) && rec.Failures != nil {
		if others, err = failure.Decode(rec.Failures, r.ClockOffset); err != nil {
			r.Log.Warn("cannot read another host's record of the failure", "error", err)
		}
	}
	// Of its own workers this host knows more than went through the store.
	all := slices.Clone(failures)
	for _, f := range others {
		if !slices.ContainsFunc(failures, func(own *failure.ProcessFailure) bool { return own.Rank == f.Rank }) {
			all = append(all, f)
		}
	}
	if missing := len(all) - len(others); missing > 0 { // which are this host's, so they are not left out here
		cfg.LeftOut = max(0, cfg.LeftOut-missing)
	}
	if job != nil {
		_ = r.Store.Wait(ctx, readKey) // others may still be reading from a store that ends with this agent
	}
	return failure.NewReport(cfg, all)
}
