package agent

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

// jobFailures is what the node of the record has gathered. The others read it
// instead of gathering for themselves, so that the traffic grows with the number
// of nodes and not with its square.
type jobFailures struct {
	hostFailures
	Silent  []string `json:"silent"`
	Readers int      `json:"readers"` // nodes that are known to wait for it
}

// publish sets how this host's workers failed, for the node of the record.
func (a *Agent) publish(ctx context.Context, at *attempt) error {
	var host hostFailures
	host.Failures, host.LeftOut = failure.Encode(a.ownReport(at).Failures, at.round.ClockOffset, hostLimit)
	text, err := json.Marshal(host)
	if err != nil {
		return err
	}
	return at.round.Store.Set(ctx, fmt.Sprint(failuresPrefix, at.round.Rank), text)
}

// introduction is how long the report waits for agents that have not set their agentPrefix.
const introduction = 200 * time.Millisecond

// gather makes the report of the job from what all its hosts publish, and hands it out to
// them. It waits for hosts that are not known to be gone.
func (a *Agent) gather(ctx context.Context, at *attempt) *failure.Report {
	own := a.ownReport(at)
	// The others wait for the report as long as PeerTimeout, so it has to be there
	// before that.
	waiting, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout*3/4)
	defer cancel()
	// An agent of ours sets its key once its workers run, and some may be starting them now.
	// A torch agent never sets it.
	keys := make([]string, at.round.WorldSize)
	for i := range keys {
		keys[i] = fmt.Sprint(agentPrefix, i)
	}
	soon, cancel := context.WithTimeout(waiting, introduction)
	_ = at.round.Store.Wait(soon, keys...)
	cancel()
	ours := make([]bool, at.round.WorldSize)
	for i := range ours {
		var err error
		if ours[i], err = at.round.Store.Check(waiting, keys[i]); err != nil {
			a.log.Warn("cannot collect the failures of the other hosts", "error", err)
			own.Silent = []string{"all other hosts"}
			return own
		}
	}
	a.awaitFailures(waiting, at, ours)
	// Those that have come are read even if no time is left to wait for others.
	ctx, cancel = context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	cfg, all, readers := own.ReportConfig, slices.Clone(at.outcome.failures), 0
	for i := range ours {
		if i == at.round.Rank {
			continue
		}
		list, left, err := a.failuresOf(ctx, at, i)
		if err != nil {
			why := ""
			switch {
			case at.status.gone[i]:
				why = ", lost"
			case !ours[i]:
				why = ", not known to run muster"
			}
			cfg.Silent = append(cfg.Silent, nodeName(ctx, at, i)+why)
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
	a.handOut(ctx, at, report, readers)
	return report
}

// awaitFailures waits until all of our agents that are still there have published.
func (a *Agent) awaitFailures(ctx context.Context, at *attempt, ours []bool) {
	changes := a.cfg.Rendezvous.Changes()
	for {
		var keys []string
		for i := range ours {
			if ours[i] && i != at.round.Rank && !at.status.gone[i] {
				keys = append(keys, fmt.Sprint(failuresPrefix, i))
			}
		}
		if len(keys) == 0 {
			return
		}
		wait, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = at.round.Store.Wait(wait, keys...) // what is missing will be seen
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
					at.status.gone[c.Rank] = true
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
func (a *Agent) failuresOf(ctx context.Context, at *attempt,
	groupRank int) (list []*failure.ProcessFailure, left int, err error) {
	text, err := lookUp(ctx, at.round.Store, fmt.Sprint(failuresPrefix, groupRank))
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
		list, err = failure.Decode(host.Failures, at.round.ClockOffset)
	}
	if err != nil {
		a.log.Warn("cannot read another host's report of its failures", "group_rank", groupRank, "error", err)
	}
	return list, max(0, host.LeftOut), err
}

// handOut gives the report to the other hosts and waits until they have it, since
// the store may end with this agent.
func (a *Agent) handOut(ctx context.Context, at *attempt, report *failure.Report, readers int) {
	job := jobFailures{Silent: report.Silent, Readers: readers}
	job.Failures, job.LeftOut = failure.Encode(report.Failures, at.round.ClockOffset, reportLimit)
	job.LeftOut += report.LeftOut
	text, err := json.Marshal(job)
	if err == nil {
		err = at.round.Store.Set(ctx, reportKey, text)
	}
	if err == nil && readers > 0 {
		err = at.round.Store.Wait(ctx, readKey)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("cannot pass the job's report to the other hosts", "error", err)
	}
}

// fetch begins to wait for the report that the node of the record makes, and sends it on the
// channel, which it closes when its goroutine ends.
func (a *Agent) fetch(ctx context.Context, at *attempt) <-chan *jobFailures {
	got := make(chan *jobFailures, 1)
	go func() {
		defer close(got)
		s := at.round.Store
		text, err := patientGet(ctx, s, reportKey)
		if err != nil {
			return
		}
		var job jobFailures
		if err := bounded(reportKey, text, 2*reportLimit, reportElements, &job); err != nil {
			a.log.Warn("cannot read the job's report, which another host made", "bytes", len(text), "error", err)
			return
		}
		got <- &job
		if have, err := s.Add(ctx, readKey+"/count", 1); err == nil && have >= int64(job.Readers) {
			_ = s.Set(ctx, readKey, []byte("1"))
		}
	}()
	return got
}

// jobReport is the report of a job that failed on another host: what that host
// has gathered, or, if that does not come, its record.
func (a *Agent) jobReport(ctx context.Context, at *attempt, rec *record, fetched <-chan *jobFailures) *failure.Report {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PeerTimeout)
	defer cancel()
	own := a.ownReport(at)
	cfg := own.ReportConfig
	if err := a.publish(ctx, at); err != nil {
		a.log.Warn("cannot tell the other hosts how this host's workers ended", "error", err)
	}
	var others []*failure.ProcessFailure
	var job *jobFailures
	select {
	case job = <-fetched:
	case <-ctx.Done():
	}
	var err error
	if job != nil {
		cfg.LeftOut = job.LeftOut
		me := nodeName(ctx, at, at.round.Rank)
		cfg.Silent = slices.DeleteFunc(job.Silent, func(name string) bool { return name == me })
		others, err = failure.Decode(job.Failures, at.round.ClockOffset)
	} else {
		cfg.Silent = []string{"all hosts, for the job's report: " + rec.Host + " did not send it in time"}
	}
	if err != nil {
		a.log.Warn("cannot read the job's report, which another host made", "error", err)
	}
	if (job == nil || err != nil) && rec.Failures != nil {
		if others, err = failure.Decode(rec.Failures, at.round.ClockOffset); err != nil {
			a.log.Warn("cannot read another host's record of the failure", "error", err)
		}
	}
	// Of its own workers this host knows more than went through the store.
	all := slices.Clone(at.outcome.failures)
	for _, f := range others {
		if !slices.ContainsFunc(at.outcome.failures, func(own *failure.ProcessFailure) bool { return own.Rank == f.Rank }) {
			all = append(all, f)
		}
	}
	if missing := len(all) - len(others); missing > 0 { // which are this host's, so they are not left out here
		cfg.LeftOut = max(0, cfg.LeftOut-missing)
	}
	if job != nil {
		_ = at.round.Store.Wait(ctx, readKey) // others may still be reading from a store that ends with this agent
	}
	return failure.NewReport(cfg, all)
}
