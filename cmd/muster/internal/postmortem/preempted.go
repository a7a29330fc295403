package postmortem

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Preemption says who asked the whole job to stop, and how this host's workers
// ended then.
type Preemption struct {
	Host   string    `json:"host"`
	Signal string    `json:"signal"`
	Time   time.Time `json:"time,omitzero"`
	// ExitStatus is the agents'.
	ExitStatus int     `json:"exit_status,omitempty"`
	Grace      float64 `json:"grace_seconds,omitempty"`
	// CutShort is what cut the grace of some worker: "second signal", "end of the
	// grace"; "" if none had to be killed.
	CutShort string            `json:"cut_short,omitempty"`
	Workers  []PreemptedWorker `json:"workers,omitempty"`
}

// A PreemptedWorker is how one worker of a preempted job ended.
type PreemptedWorker struct {
	Rank      int       `json:"rank"`
	LocalRank int       `json:"local_rank"`
	PID       int       `json:"pid,omitempty"`
	ExitCode  int       `json:"exit_code"`
	Signal    string    `json:"signal,omitempty"`
	Ended     time.Time `json:"ended_at,omitzero"`
	StoppedBy string    `json:"stopped_by,omitempty"`
	Killed    bool      `json:"cut_short"`
}

// preempt notes that an attempt was preempted. What is known already stays.
func (a *Attempt) preempt(p *Preemption) {
	if a.Outcome = Preempted; a.Preempted != nil {
		return
	}
	for _, s := range [...]*string{&p.Host, &p.Signal, &p.CutShort} {
		*s = clean(*s)
	}
	p.Workers = slices.Clone(p.Workers[:min(len(p.Workers), maxWorkers)])
	for i := range p.Workers {
		w := &p.Workers[i]
		w.Signal, w.StoppedBy = clean(w.Signal), clean(w.StoppedBy)
		w.LocalRank, w.PID = max(0, w.LocalRank), max(0, w.PID)
		w.Rank = max(w.Rank, w.LocalRank)
	}
	a.Preempted = p
	if len(a.Failures) == 0 {
		a.Cause = "preempted: " + p.who()
	}
}

// who says who asked.
func (p *Preemption) who() string {
	return fmt.Sprintf("host %s received %s at %s", p.Host, p.Signal, stamp(p.Time))
}

// write writes how the workers ended.
func (p *Preemption) write(b *strings.Builder) {
	table := rows{}
	for i, w := range p.Workers {
		if i == shownOthers {
			table.add("", fmt.Sprintf("and %d more", len(p.Workers)-i))
			break
		}
		table.add(fmt.Sprintf("rank %d (local_rank %d, pid %d):", w.Rank, w.LocalRank, w.PID), p.ending(&w))
	}
	if len(table.lines) > 0 {
		b.WriteString("  workers of this host:\n")
		table.write(b, "    ")
	}
}

// ending says how a worker ended.
func (p *Preemption) ending(w *PreemptedWorker) string {
	text := fmt.Sprintf("exit status %d", w.ExitCode)
	if w.ExitCode < 0 {
		text = "killed by " + w.Signal
	}
	switch {
	case w.Killed && p.CutShort != "":
		text += " at the " + p.CutShort
	case w.StoppedBy == "":
		text += ", by itself"
	}
	if took := w.Ended.Sub(p.Time); !w.Ended.IsZero() && !p.Time.IsZero() && took > 0 {
		text += ", " + span(took) + " after the signal"
	}
	return text
}
