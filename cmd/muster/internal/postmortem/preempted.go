package postmortem

import (
	"fmt"
	"strings"

	"github.com/muster-run/muster/failure"
)

// preempt notes that an attempt was preempted. What is known already stays.
func (a *Attempt) preempt(p *failure.Preemption) {
	if a.Outcome = Preempted; a.Preempted != nil {
		return
	}
	p.Workers = p.Workers[:min(len(p.Workers), maxWorkers)]
	a.Preempted = p
	if len(a.Failures) == 0 {
		a.Cause = "preempted: " + who(p)
	}
}

// who says who asked.
func who(p *failure.Preemption) string {
	return fmt.Sprintf("host %s received %s at %s", p.Host, p.Signal, stamp(p.Time))
}

// writeEnds writes how the workers ended.
func writeEnds(b *strings.Builder, p *failure.Preemption) {
	for i, w := range p.Workers {
		if i == 0 {
			b.WriteString("  workers of this host:\n")
		}
		if i == shownOthers {
			fmt.Fprintf(b, "    and %d more\n", len(p.Workers)-i)
			break
		}
		fmt.Fprintf(b, "    rank %d (local_rank %d, pid %d): %s\n", w.Rank, w.LocalRank, w.PID, howEnded(p, &w))
	}
}

// howEnded says how a worker ended.
func howEnded(p *failure.Preemption, w *failure.PreemptedWorker) string {
	text := fmt.Sprintf("exit status %d", w.ExitCode)
	if w.ExitCode < 0 {
		text = "killed by " + failure.Signal(-w.ExitCode).String()
	}
	switch {
	case w.Killed && p.CutShort != "":
		text += " at the " + p.CutShort
	case w.StoppedBy == 0:
		text += ", by itself"
	}
	if took := w.Ended.Sub(p.Time); !w.Ended.IsZero() && !p.Time.IsZero() && took > 0 {
		text += ", " + span(took) + " after the signal"
	}
	return text
}
