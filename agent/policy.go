package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/rendezvous"
)

// stderrWait is how long announceEarly waits at first for the rest of what a failed worker has
// written to stderr: where nothing is there yet, or a rule of the policy reads it.
const stderrWait = 200 * time.Millisecond

// fileTimeout bounds a look at the files that show progress.
const fileTimeout = 2 * time.Second

// newPolicy makes the engine that decides about failures; nil where there is no policy, so that
// the number of restarts alone decides.
func newPolicy(cfg *Config) *policy.Engine {
	if cfg.Policy == nil {
		return nil
	}
	return &policy.Engine{Policy: cfg.Policy, MaxRestarts: cfg.MaxRestarts, Rand: cfg.Rand}
}

// verdictAction is what the policy says of the attempt's failure; "" if it says nothing.
func (at *attempt) verdictAction() decide.Verdict {
	if at.status.verdict == nil {
		return ""
	}
	return decide.Verdict(at.status.verdict.Action)
}

// atOnce is a decision without its back-off: those who go on wait for nothing.
func atOnce(d *policy.Decision) *policy.Decision {
	if d == nil {
		return nil
	}
	prompt := *d
	prompt.Delay = 0
	return &prompt
}

// A prober looks at files that may be on a file system which does not answer. busy is where
// a look that was not over in time will send what it finds, which the next look returns;
// nil without one. Only the goroutine of Run uses it.
type prober struct{ busy chan string }

// look returns a text that changes when one of the files does; "" where there are
// none, or they cannot be looked at in time.
func (p *prober) look(files []string) string {
	if len(files) == 0 {
		return ""
	}
	if p.busy == nil {
		p.busy = make(chan string, 1)
		// The goroutine ends later than the job only if the file system blocks it.
		go func(done chan<- string) { done <- stamps(files) }(p.busy)
	}
	timer := time.NewTimer(fileTimeout)
	defer timer.Stop()
	select {
	case text := <-p.busy:
		p.busy = nil
		return text
	case <-timer.C:
		return ""
	}
}

// stamps says of each file what it is and from when.
func stamps(files []string) string {
	var b strings.Builder
	for _, file := range files {
		target, _ := os.Readlink(file)
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintf(&b, "%s %d %s;", target, info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano))
		} else {
			fmt.Fprintf(&b, "%s -;", target)
		}
	}
	return b.String()
}

// emitFailed emits that the attempt has failed: by root or, if that is nil, by the loss of a host.
func (a *Agent) emitFailed(at *attempt, root *failure.ProcessFailure, f policy.Failure) {
	f.Restarts, f.Progress = a.restarts, a.judge.progressOf(at)
	a.emit(at, AttemptFailed{f, root, at.status.verdict})
}

// emitFailure emits the failure of this host's workers, once.
func (a *Agent) emitFailure(at *attempt) {
	root := at.why.ownReport().Root()
	if root == nil || root.Stopped() || at.status.emitted {
		return
	}
	at.status.emitted = true
	a.emitFailed(at, root, a.judge.failureOf(at, root))
}

// emitLoss emits that the attempt ends because a host was lost, if that is why.
func (a *Agent) emitLoss(at *attempt, n news) {
	if n.change.Kind == rendezvous.NodeLost {
		a.emitFailed(at, nil, a.judge.lossOf(at, cmp.Or(at.status.lostHost, n.change.Node)))
	}
}

// depart is the result of a host that its policy drains: the job goes on without it.
func (a *Agent) depart(at *attempt, state State) *Result {
	a.emitFailure(at)
	r := a.failed(at, state, at.why.ownReport())
	r.Left, r.Drained = true, true
	a.log.Error("this host leaves the job, which may continue without it", "cause", r.Report.Root().Error(),
		"decision", at.status.verdict.String())
	return r
}

// giveUp ends the job because a host was lost and a rule, here or on the host of the record,
// stops the job for that.
func (a *Agent) giveUp(ctx context.Context, at *attempt, n news) (*Result, error) {
	rec := n.record
	if rec == nil {
		a.emitLoss(at, n)
		rec = a.newRecord(at, nil, nil, true)
		rec.Cause = fmt.Sprintf("a host is lost (%s); %s", changeText(n.change), rec.Decision)
		if !at.alone() && n.change.Rank >= 0 {
			a.put(context.WithoutCancel(ctx), at, rec)
		}
	}
	a.log.Error("stopping the job: " + rec.Cause)
	a.conclude(rendezvous.Outcome{Result: rendezvous.JobFailed, Host: rec.Host, Cause: rec.Cause})
	a.emit(at, Stopping{Failed, "for good", rec.Cause})
	a.stopWorkers(ctx, at, syscall.SIGTERM)
	return a.stopped(at, Failed), errors.New(rec.Cause)
}

// decisionAttr is a decision for the log.
func decisionAttr(d *policy.Decision) []any {
	if d == nil {
		return nil
	}
	return []any{"decision", d.String()}
}

// announceLater sends the news of a worker's failure again, when the rest of its stderr should
// be there: each time after twice as long.
func (a *Agent) announceLater(at *attempt, n news) {
	n.waited = max(stderrWait, 2*n.waited)
	at.run.wg.Go(func() {
		if at.outlives(n.waited) {
			at.send(n)
		}
	})
}
