package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/format/text"
)

// An Engine applies a policy to the failures of one job. Policy and MaxRestarts are set
// before it is used. Its methods are called by one goroutine.
type Engine struct {
	Policy *Policy
	// MaxRestarts bounds the restarts of the job, whatever the policy allows.
	MaxRestarts int
	// Rand is for the jitter. Default: one with a seed of its own.
	Rand *rand.Rand

	// What Record has noted. Decide only reads it, so that asking twice gives the same.
	history map[string]history // by the name of the rule
	stalled int                // restarts in a row without progress
	seen    Progress           // the furthest
	any     bool               // a restart was recorded: seen and stalled count
}

// history is what a rule has done.
type history struct {
	retries []time.Time // within the window, the oldest first
	streak  int         // since the back-off began anew
}

// A Decision is what follows from a failure, with what the Engines of other hosts record of
// it so that they decide alike about the next.
type Decision struct {
	// Action is what to do. It is empty where no rule applies: a host that is lost
	// is then replaced, and a worker that cannot be started or killed ends the job.
	Action Action `json:"action"`
	// Rule is the name of the rule that matched, and Source where it is written.
	Rule   string `json:"rule"`
	Source string `json:"source"`
	// Why says what made a rule that would retry stop; empty otherwise.
	Why string `json:"why,omitempty"`
	// All is Rule.All of the rule that matched.
	All bool `json:"all,omitempty"`
	// Delay is how long to wait before a Retry.
	Delay time.Duration `json:"delay,omitempty"`
	// Budget is how many more restarts the rule may cause; -1 if it has no budget.
	Budget int `json:"budget"`

	Time     time.Time `json:"time"`
	Streak   int       `json:"streak,omitempty"`
	Stalled  int       `json:"stalled,omitempty"`
	Progress Progress  `json:"progress,omitzero"`
}

// String says who decided what: "stopped by rule oom of p.yaml:7: its budget …".
func (d Decision) String() string {
	done := map[Action]string{Retry: "retried", Stop: "stopped", Drain: "drained"}[d.Action]
	if done == "" {
		return "no rule applies"
	}
	s := done + " by rule " + d.Rule + " of " + d.Source
	if d.Rule == defaultName {
		s = done + " by the default of " + d.Source
	}
	if d.Why != "" {
		s += ": " + d.Why
	}
	return s
}

// Valid reports whether a decision that came from another host can be one.
func (d *Decision) Valid() bool {
	return d.Delay >= 0 && d.Delay <= maxDelay && 0 <= d.Streak && d.Streak <= math.MaxInt32 && 0 <= d.Stalled && d.Stalled <= math.MaxInt32
}

// Decide says what follows from a failure at a time. Nothing has changed until
// Record is told that it has followed.
func (e *Engine) Decide(f Failure, now time.Time) Decision {
	p := e.Policy
	r := p.rule(&f)
	if r == nil {
		return Decision{Budget: -1, Time: now}
	}
	d := Decision{Action: r.Action, Rule: r.Name, Source: p.File, Budget: -1, All: r.All, Time: now, Progress: e.furthest(f.Progress)}
	if r.Line > 0 {
		d.Source = fmt.Sprintf("%s:%d", p.File, r.Line)
	}
	if r.Action != Retry {
		return d
	}
	h := e.history[r.Name]
	got := e.any && e.progressed(f.Progress)
	stalled := e.stalled
	if got {
		stalled = 0
	}
	if r.Budget != nil {
		d.Budget = r.Budget.Restarts - r.Budget.used(h.retries, now)
	}
	switch {
	case f.Cause != failure.CauseHostLost && f.Restarts >= e.MaxRestarts:
		d.Action, d.Why = Stop, noRestarts(e.MaxRestarts)
	case d.Budget == 0:
		d.Action, d.Why = Stop, "its budget of "+r.Budget.String()+" is used up"
	case p.NoProgress != nil && stalled >= p.NoProgress.Restarts:
		d.Action, d.Why = Stop, e.noProgress(stalled)
	default:
		if d.Budget > 0 {
			d.Budget--
		}
		d.Stalled, d.Streak = stalled+1, h.streak+1
		if r.Backoff != nil {
			if got || f.Ran >= r.Backoff.Reset {
				d.Streak = 1
			}
			d.Delay = r.Backoff.delay(d.Streak, e.Rand)
		}
	}
	return d
}

// Record notes that a decision has been carried out, one of this engine or of that of
// another host, whose policy should be the same.
func (e *Engine) Record(d Decision) {
	if d.Action != Retry {
		return
	}
	e.any, e.stalled, e.seen = true, d.Stalled, e.furthest(d.Progress)
	for _, r := range append(slices.Clip(e.Policy.Rules), e.Policy.Default) {
		if r.Name != d.Rule {
			continue
		}
		h := history{e.history[r.Name].retries, d.Streak}
		if r.Budget != nil {
			h.retries = append(h.retries[len(h.retries)-r.Budget.used(h.retries, d.Time):], d.Time)
		}
		if e.history == nil {
			e.history = map[string]history{}
		}
		e.history[r.Name] = h
	}
}

// used is how many of the restarts still count.
func (b *Budget) used(retries []time.Time, now time.Time) int {
	if b.Window == 0 {
		return len(retries)
	}
	n := 0
	for _, t := range retries {
		if now.Sub(t) < b.Window {
			n++
		}
	}
	return n
}

func (b *Budget) String() string {
	s := text.Count(b.Restarts, "restart")
	if b.Window > 0 {
		s += " in " + short(b.Window)
	}
	return s
}

// delay is how long to wait the n-th time.
func (b *Backoff) delay(n int, r *rand.Rand) time.Duration {
	d := min(float64(b.Initial)*math.Pow(b.Factor, float64(max(n-1, 0))), float64(b.Max))
	if b.Jitter > 0 {
		share := rand.Float64
		if r != nil {
			share = r.Float64
		}
		d *= 1 - b.Jitter*share()
	}
	return time.Duration(d).Round(time.Millisecond)
}

// progressed reports whether the job has come further since the last failure.
func (e *Engine) progressed(p Progress) bool {
	n := e.Policy.NoProgress
	return n != nil && (n.Heartbeat && p.Step > e.seen.Step || n.Files != nil && p.Files != "" && p.Files != e.seen.Files)
}

// furthest is how far the job has come in all.
func (e *Engine) furthest(p Progress) Progress {
	p.Step = max(p.Step, e.seen.Step)
	if p.Files == "" {
		p.Files = e.seen.Files
	}
	return p
}

func (e *Engine) noProgress(restarts int) string {
	n := e.Policy.NoProgress
	var missing []string
	if n.Heartbeat {
		missing = append(missing, fmt.Sprintf("no heartbeat of a step after %d", e.seen.Step))
	}
	if n.Files != nil {
		missing = append(missing, "no change of "+strings.Join(n.Files, " or "))
	}
	return fmt.Sprintf("no progress in %s: %s", text.Count(restarts, "restart"), strings.Join(missing, ", "))
}

// noRestarts says that the job has used up all of its restarts.
func noRestarts(n int) string {
	switch n {
	case 0:
		return "the job has no restarts"
	case 1:
		return "the job's one restart is used up"
	}
	return fmt.Sprintf("the job's %d restarts are used up", n)
}

// short is a duration without its zeros: 1h, 1m30s.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}
