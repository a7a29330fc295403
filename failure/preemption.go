package failure

import (
	"fmt"
	"strings"
	"time"
)

// PreemptedStatus is the exit status of an agent whose whole job was told to stop
// and may be started again: EX_TEMPFAIL of sysexits.h.
const PreemptedStatus = 75

// A Preemption says who asked the whole job to stop, and how the workers of one
// host ended then. It is also what report.json has of it.
type Preemption struct {
	Host   string    `json:"host,omitempty"` // that received the signal
	Signal Signal    `json:"signal,omitzero"`
	Time   time.Time `json:"time,omitzero"` // by the clock of the host that tells of it
	// ExitStatus is the agents'; NewReport sets it.
	ExitStatus int `json:"exit_status,omitempty"`
	// Grace is what the workers had from the signal to SIGKILL, in seconds. CutShort is
	// why some of them were killed: "second signal" to the agent, "end of the grace period", or
	// empty if none was. Add sets it.
	Grace    float64 `json:"grace_seconds,omitzero"`
	CutShort string  `json:"cut_short,omitempty"`
	// Workers are those of this host, by local rank; none where none had been started.
	Workers []PreemptedWorker `json:"workers"`
}

// A PreemptedWorker is how one worker of a preempted job ended.
type PreemptedWorker struct {
	Rank      int       `json:"rank"`
	LocalRank int       `json:"local_rank"`
	PID       int       `json:"pid"`
	ExitCode  int       `json:"exit_code"`       // 0..255, or -N for signal N
	Signal    Signal    `json:"signal,omitzero"` // N
	Ended     time.Time `json:"ended_at,omitzero"`
	// StoppedBy is the signal that it got from muster; 0 if it had ended by itself.
	StoppedBy Signal `json:"stopped_by,omitzero"`
	// Killed says that it did not end before its grace was cut short.
	Killed bool `json:"cut_short"`
}

// Add adds a worker, and sets CutShort if it was killed. graceOver says that it ended after
// all of its grace; a worker that was killed before that was killed for a second signal.
func (p *Preemption) Add(w PreemptedWorker, graceOver bool) {
	switch {
	case w.Killed && graceOver:
		p.CutShort = "end of the grace period"
	case w.Killed && p.CutShort == "":
		p.CutShort = "second signal"
	}
	p.Workers = append(p.Workers, w)
}

// String says who asked, by the local clock.
func (p *Preemption) String() string {
	return fmt.Sprintf("host %s received %s at %s", oneLine(p.Host, maxName), p.Signal,
		p.Time.Local().Format("15:04:05.000"))
}

// Text says for people, in whole lines, who asked, and which workers had to be
// killed.
func (p *Preemption) Text() string {
	text := "muster: the job is preempted: " + p.String() + "; it may be started again\n"
	if killed := p.killed(); killed != "" {
		text += "muster: killed at the " + p.CutShort + ": " + killed + "\n"
	}
	return text
}

// killed lists the workers that were killed.
func (p *Preemption) killed() string {
	var ranks []string
	for _, w := range p.Workers {
		if w.Killed {
			ranks = append(ranks, fmt.Sprintf("rank %d", w.Rank))
		}
	}
	if n := len(ranks); n > maxListed {
		ranks = append(ranks[:maxListed:maxListed], fmt.Sprintf("and %d more", n-maxListed))
	}
	return strings.Join(ranks, ", ")
}
