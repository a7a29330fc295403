package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/autopsy"
)

// evidence is what is known of workers that hang.
type evidence struct {
	report *autopsy.Report
	file   string // of the text; empty if it was not written
	blame  bool   // it was taken because workers are to be killed
}

// isOf reports whether evidence was taken after a time.
func (e *evidence) isOf(since time.Time) bool {
	return e != nil && !e.report.Time.Before(since)
}

// justNow is since when evidence of a failure that kills workers counts for another: workers that
// miss their deadlines together share it.
func (a *Agent) justNow() time.Time { return time.Now().Add(-a.cfg.AutopsyTimeout) }

// lacks reports whether there is no evidence since a time that would do, and since when it has to be.
// That of a hang which was only noted does not do where workers are to be killed: they may have
// gone on.
func (at *attempt) lacks(since time.Time, blame bool) (time.Time, bool) {
	switch e := at.lastEvidence(); {
	case !e.isOf(since):
		return since, true
	case blame && !e.blame:
		return time.Now(), true
	}
	return since, false
}

// autopsy keeps evidence of the workers of this host, before some of them are killed for reason
// with blame, unless that is turned off. It takes no longer than Config.AutopsyTimeout and ends
// with ctx.
func (a *Agent) autopsy(ctx context.Context, at *attempt, reason string, pids map[int]int, blame bool) {
	if since, lacks := at.lacks(a.justNow(), blame); lacks && a.cfg.AutopsyTimeout > 0 {
		r := a.lookForFailure(ctx, at, since, reason, pids)
		r.Judge()
		a.keep(at, r, blame)
	}
}

// lookForFailure takes evidence of the workers of this host, or returns what was taken for a
// failure since a time.
func (a *Agent) lookForFailure(ctx context.Context, at *attempt, since time.Time, reason string,
	pids map[int]int) *autopsy.Report {
	at.autopsies.Lock()
	defer at.autopsies.Unlock()
	if at.taken == nil || at.taken.Time.Before(since) {
		at.taken = a.lookAt(ctx, at, reason, pids)
	}
	return at.taken
}

// lookAt takes evidence of the workers of this host. It leaves some of Config.AutopsyTimeout for
// the way to other hosts. The caller holds at.autopsies: two cannot look at a worker at a time.
func (a *Agent) lookAt(ctx context.Context, at *attempt, reason string, pids map[int]int) *autopsy.Report {
	targets := make([]autopsy.Target, 0, len(pids))
	var witness func(context.Context, int) ([]byte, error)
	if a.witness != nil {
		witness = a.witness.Everything
	}
	for _, i := range slices.Sorted(maps.Keys(pids)) {
		targets = append(targets, autopsy.Target{
			Rank: at.rank(i), LocalRank: i, PID: pids[i], Witness: witness,
			Tail: func() []byte { return at.logs.StderrTail(i) },
		})
	}
	return autopsy.Take(ctx, reason, targets, autopsy.Config{Timeout: a.cfg.AutopsyTimeout * 4 / 5,
		World: at.ranks.WorldSize, Behind: at.round.ClockOffset, Logger: a.log})
}

// keep makes evidence that of the attempt, and writes it.
func (a *Agent) keep(at *attempt, r *autopsy.Report, blame bool) {
	e := &evidence{r, a.write(at, r), blame}
	at.mu.Lock()
	defer at.mu.Unlock()
	at.evidence = e
}

// write writes evidence down, and says what it shows and where it is.
func (a *Agent) write(at *attempt, r *autopsy.Report) (file string) {
	if dir := at.logs.Dir(); dir != "" {
		var err error
		if file, _, err = r.WriteDir(dir); err != nil {
			a.log.Warn("cannot write the evidence of workers that hang", "error", err)
		}
	}
	attrs := []any{"evidence", file, "seconds", fmt.Sprintf("%.2f", r.Seconds)}
	if !strings.HasPrefix(r.Reason, "hang: ") { // which the line before says
		attrs = append(attrs, "reason", r.Reason)
	}
	a.log.Warn("what the workers did: "+r.Summary(), attrs...)
	a.emitElsewhere(EvidenceTaken{r.Summary()})
	return file
}

// unheeded keeps evidence of workers that do not heed their stop signal.
func (a *Agent) unheeded(ctx context.Context, at *attempt, pids map[int]int) {
	a.autopsy(ctx, at, "workers do not end after the signal to stop", pids, true)
}

// odd returns the ranks that are to blame for a hang: those that do something else than most;
// none where nothing tells the ranks apart. A worker that has ended is not: had it failed, the
// agent would not wait for the others.
func (e *evidence) odd() (ranks []int) {
	if e == nil {
		return nil
	}
	if named := e.report.Named(); named != nil {
		return named
	}
	for _, g := range e.report.Groups() {
		if g.Odd && !g.Ended() {
			ranks = append(ranks, g.Ranks...)
		}
	}
	return ranks
}

// named reports whether the workers' flight recorders say who makes the others wait.
func (e *evidence) named() bool { return e != nil && e.report.Named() != nil }

// suspects reports whether a rank may be to blame.
func (e *evidence) suspects(rank int) bool {
	odd := e.odd()
	return len(odd) == 0 || slices.Contains(odd, rank)
}

// innocent says that a worker has missed a deadline only because another one of this host has,
// which the evidence blames.
func (at *attempt) innocent(localRank int) bool {
	e := at.lastEvidence()
	if e == nil || e.suspects(at.rank(localRank)) {
		return false
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	for i := range at.missed {
		if e.suspects(at.rank(i)) {
			return true
		}
	}
	return false
}

// lastEvidence is what the last autopsy of the attempt found; nil if there was none.
func (at *attempt) lastEvidence() *evidence {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.evidence
}
