package agent

import (
	"context"
	"time"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/rendezvous"
)

// examined is an attempt's workers as package evidence sees them.
type examined struct {
	a  *Agent
	at *attempt
}

func (e examined) Round() *rendezvous.Info     { return e.at.round }
func (e examined) Rank(localRank int) int      { return e.at.rank(localRank) }
func (e examined) Processes() map[int]int      { return e.at.team.group.PIDs() }
func (e examined) Written(localRank int) int64 { return e.at.team.logs.Output(localRank).Bytes }
func (e examined) LogDir() string              { return e.at.team.logs.Dir() }
func (e examined) World() int                  { return e.at.team.ranks.WorldSize }
func (e examined) RunDir() string              { return e.a.cfg.Logs.Dir() }
func (e examined) Kill()                       { e.at.team.group.Kill() }

func (e examined) Working() map[int]int {
	if e.a.live == nil {
		return e.Processes()
	}
	return e.a.live.Working(e.Processes())
}

// evidenceConfig is what evidence of all attempts has in common.
func (a *Agent) evidenceConfig() *evidence.Config {
	return &evidence.Config{
		Answers: make(chan struct{}), RunID: a.job.RunID, Host: a.cfg.Host, Timeout: a.cfg.AutopsyTimeout, HangTimeout: a.cfg.HangTimeout,
		HangNotify: a.cfg.HangNotify, Caller: a.cfg.Rendezvous, Log: a.log, Requests: func() int64 { return a.watchdog.Load().requests() },
		Suspected: func(who, what string, since time.Time) {
			a.emitElsewhere(Suspected{who, what, since, !a.cfg.HangNotify})
		},
		Taken: func(summary string, since time.Time, kills bool) {
			a.emitElsewhere(EvidenceTaken{summary, since, kills})
		},
	}
}

// Autopsy returns what this host's workers do at the moment, as JSON, for a person or a program; no failure is
// to be read from that. The error says why there is no evidence.
func (a *Agent) Autopsy(ctx context.Context, reason string) ([]byte, error) {
	at := a.published.running()
	if at == nil {
		return nil, errNoWorkers
	}
	return at.evidence.Now(ctx, reason)
}

// answerEvidence answers another agent's request for evidence.
func (a *Agent) answerEvidence(ctx context.Context, request []byte) ([]byte, error) {
	at := a.published.running()
	if at == nil {
		return nil, errNoWorkers
	}
	return at.evidence.Answer(ctx, request, func(wait func(context.Context)) bool {
		return a.published.spawn(func() { wait(at.run.life) })
	})
}

// HangAuto is a HangTimeout that is three times the longest time without a sign of life that the job has had
// so far, and ten minutes at least.
const HangAuto time.Duration = -1
