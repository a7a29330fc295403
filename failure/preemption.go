package failure

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/pyjson"
)

// PreemptedStatus is the exit status of an agent whose whole job was told to stop
// and may be started again: EX_TEMPFAIL of sysexits.h.
const PreemptedStatus = 75

// What cuts the grace of a preempted job's workers short.
const (
	CutBySignal = "second signal"    // to their agent
	CutByGrace  = "end of the grace" // the time was over
)

// A Preemption says who asked the whole job to stop, and how the workers of one
// host ended then.
type Preemption struct {
	Host   string // that received the signal
	Signal syscall.Signal
	Time   time.Time // by the clock of the host that tells of it
	// Grace is what the workers had from the signal to SIGKILL, CutShort why some of
	// them were killed: CutBySignal, CutByGrace, or empty if none was.
	Grace    time.Duration
	CutShort string
	Workers  []PreemptedWorker // of this host, by local rank; none where none had been started
}

// A PreemptedWorker is how one worker of a preempted job ended.
type PreemptedWorker struct {
	Rank, LocalRank, PID int
	ExitCode             int // 0..255, or -N for signal N
	Ended                time.Time
	// StoppedBy is the signal that it got from muster; 0 if it had ended by itself.
	StoppedBy syscall.Signal
	// Killed says that it did not end before its grace was cut short.
	Killed bool
}

// String says who asked, by the local clock.
func (p *Preemption) String() string {
	return fmt.Sprintf("host %s received %s at %s", oneLine(p.Host, maxName), signalText(p.Signal), p.Time.Format("15:04:05.000"))
}

// json is the value of "preempted" in a report.
func (p *Preemption) json() pyjson.Value {
	workers := pyjson.List()
	for _, w := range p.Workers {
		signal := ""
		if w.ExitCode < 0 {
			signal = signalText(syscall.Signal(-w.ExitCode))
		}
		workers.Items = append(workers.Items, pyjson.Dict(
			m("rank", num(w.Rank)),
			m("local_rank", num(w.LocalRank)),
			m("pid", num(w.PID)),
			m("exit_code", num(w.ExitCode)),
			m("signal", str(signal)),
			m("ended_at", stamp(w.Ended)),
			m("stopped_by", str(SignalName(w.StoppedBy))),
			m("cut_short", pyjson.True(w.Killed)),
		))
	}
	return pyjson.Dict(
		m("host", str(p.Host)),
		m("signal", str(signalText(p.Signal))),
		m("time", stamp(p.Time)),
		m("exit_status", num(PreemptedStatus)),
		m("grace_seconds", pyjson.Float(p.Grace.Seconds())),
		m("cut_short", str(p.CutShort)),
		m("workers", workers),
	)
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
