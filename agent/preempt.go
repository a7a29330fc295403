package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/process"
)

// A Preemption says who asked the whole job to stop.
type Preemption struct {
	Host   string
	Signal syscall.Signal
	Time   time.Time // by this host's clock
}

func (p *Preemption) String() string {
	return fmt.Sprintf("host %s received %s at %s", p.Host, process.SignalName(p.Signal), p.Time.Format("15:04:05.000"))
}

// preemption is what the agent's own stop means for the job; nil if that goes on
// without this node.
func (a *Agent) preemption(cause error) *Preemption {
	s, ok := errors.AsType[*process.SignalError](cause)
	if !ok || !slices.Contains(a.cfg.PreemptionSignals, s.Signal) {
		return nil
	}
	return &Preemption{Host: a.cfg.Host, Signal: s.Signal, Time: time.Now()}
}

// tellPreempted tells the other nodes that all shall stop.
func (a *Agent) tellPreempted(at *attempt, p *Preemption) {
	if at.alone() {
		return
	}
	rec := &record{
		Node: at.round.Rank, Rank: -1, Host: p.Host, Restarts: a.restarts, Final: true,
		Cause: p.String(), Signal: int(p.Signal), Time: p.Time.Add(at.round.ClockOffset),
	}
	a.put(context.WithoutCancel(at.life), at, rec)
}

// drain stops the workers since another node was told to stop the job.
func (a *Agent) drain(ctx context.Context, at *attempt, rec *record) *Result {
	p := &Preemption{Host: rec.Host, Signal: syscall.Signal(rec.Signal), Time: rec.Time.Add(-at.round.ClockOffset)}
	a.log.Warn("the job is preempted; stopping the workers", "by", p.String())
	a.enter(health.Restarting, Failed, "stopping the workers for good", p.String())
	a.stopWorkers(ctx, at, p.Signal)
	r := a.stopped(at, Failed)
	r.Preempted = p
	return r
}
