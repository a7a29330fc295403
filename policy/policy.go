package policy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
)

// An Action is what follows from a failure.
type Action string

const (
	// Retry starts the workers of all hosts again.
	Retry Action = "retry"
	// Stop ends the job.
	Stop Action = "stop"
	// Drain makes the host leave on which the failure happened. The others continue
	// without it, and no restart is counted.
	Drain Action = "drain"
)

var (
	actions = []Action{Retry, Stop, Drain}
	// causes are those that a failure may have, and a rule may name.
	causes = []failure.Cause{
		failure.CauseExitCode, failure.CauseSignal, failure.CauseOOM, failure.CauseTimer, failure.CauseHang,
		failure.CauseLostPeer, failure.CauseHostLost, failure.CauseNotStarted, failure.CauseUninterruptible,
	}
)

// special says that only a rule that names the cause applies to it. Without such a rule a lost
// host is replaced, and the other two causes end the job.
func special(c failure.Cause) bool {
	return c == failure.CauseHostLost || c == failure.CauseNotStarted || c == failure.CauseUninterruptible
}

// A Policy is what a file says. Make it with Parse or Load. It may be used
// concurrently.
type Policy struct {
	// File is the file's name, for messages.
	File string
	// MaxRestarts bounds the restarts of the job if nobody has said otherwise; -1
	// if the file does not say.
	MaxRestarts int
	// Rules are tried in order; the first that matches decides.
	Rules []Rule
	// Default is what happens to a failure that no rule matches. Its Match is empty
	// and its Action Retry, unless the file says otherwise.
	Default Rule
	// NoProgress stops a job that restarts without getting anywhere; nil if nothing
	// does.
	NoProgress *NoProgress
}

// A Rule says what follows from some failures.
type Rule struct {
	Name string // what the file says, or "#" and its number
	Line int    // in the file; 0 for a default that it does not have
	Match
	Action  Action
	Budget  *Budget  // of a Retry; nil for as many as MaxRestarts allows
	Backoff *Backoff // of a Retry; nil for none
	// All, of a Retry, has all workers start again also where the others could continue without
	// the one that failed (agent.Config.Live).
	All bool
}

// A Match says which failures a rule is for: those that fit all that it has. Of a
// list one has to fit. Exits and Signals are one list.
type Match struct {
	Exits   []Range
	Signals []syscall.Signal
	Causes  []failure.Cause
	Stderr  []*regexp.Regexp // found somewhere in Failure.Stderr; ^ and $ match at lines
	Hosts   []string         // as package path has patterns
	Roles   []string
}

// A Range has both its ends.
type Range struct{ From, To int }

// A Budget is how many restarts a rule may cause.
type Budget struct {
	Restarts int
	// Window is how long a restart counts; 0 means for ever.
	Window time.Duration
}

// A Backoff is how long the hosts wait before they start the workers again: Initial
// the first time, Factor times as long each time after, at most Max. Each wait is shorter
// by a random share of at most Jitter. The waits begin anew once there has been progress
// (see NoProgress), or once workers have run for Reset. The defaults of a file are 5 minutes
// for Max (at least Initial), 10 minutes for Reset and 2 for Factor. Initial and Max are at
// most 24 hours.
type Backoff struct {
	Initial, Max, Reset time.Duration
	Factor, Jitter      float64
}

const (
	defaultFactor = 2.0
	defaultMax    = 5 * time.Minute
	defaultReset  = 10 * time.Minute
	maxDelay      = 24 * time.Hour
)

// NoProgress stops the job after so many restarts in a row without progress: no worker of the
// host that decides had a heartbeat with a step beyond all before, and none of the files
// has changed.
type NoProgress struct {
	Restarts  int
	Heartbeat bool     // look at the steps of heartbeats
	Files     []string // look at these files: what they are, how large, from when
}

// A Failure is what is known of a failed attempt: how its first worker to fail
// ended, or which host was lost.
type Failure struct {
	Cause failure.Cause
	// ExitCode is 0..255, or -N for signal N.
	ExitCode   int
	Host, Role string
	// Stderr is the end of what the worker has written to stderr. Use Tail to bound it.
	Stderr string
	// Restarts is how many the job has used.
	Restarts int
	// Ran is how long the workers ran.
	Ran time.Duration
	// Progress is how far the host's workers had come.
	Progress Progress
}

// Progress is how far a job has come.
type Progress struct {
	Step  int64  `json:"step,omitempty"`  // the furthest of all heartbeats
	Files string `json:"files,omitempty"` // differs if files of NoProgress have changed; "": not known
}

// rule returns the rule that decides about f, nil if the policy has nothing to say.
func (p *Policy) rule(f *Failure) *Rule {
	if p == nil {
		return nil
	}
	for i := range p.Rules {
		if r := &p.Rules[i]; r.fits(f) && r.readsRight(f) {
			return r
		}
	}
	if special(f.Cause) {
		return nil
	}
	return &p.Default
}

// Names reports whether a rule names a cause.
func (p *Policy) Names(c failure.Cause) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return slices.Contains(r.Causes, c) })
}

// Unsettled reports whether more of the worker's stderr could make another rule decide
// about f than the one that now does.
func (p *Policy) Unsettled(f Failure) bool {
	for i := range p.Rules {
		switch r := &p.Rules[i]; {
		case !r.fits(&f):
		case r.readsRight(&f):
			return false
		default:
			return true
		}
	}
	return false
}

// fits reports whether a failure is one that the rule is for, but for its stderr.
func (m *Match) fits(f *Failure) bool {
	if special(f.Cause) || m.Causes != nil {
		if !slices.Contains(m.Causes, f.Cause) {
			return false
		}
	}
	if m.Exits != nil || m.Signals != nil {
		exit := slices.ContainsFunc(m.Exits, func(r Range) bool { return f.ExitCode >= r.From && f.ExitCode <= r.To })
		signal := f.ExitCode < 0 && slices.Contains(m.Signals, syscall.Signal(-f.ExitCode))
		if !exit && !signal {
			return false
		}
	}
	return likeOne(m.Hosts, f.Host) && likeOne(m.Roles, f.Role)
}

// readsRight reports whether the failure's stderr is as the rule has it.
func (m *Match) readsRight(f *Failure) bool {
	return m.Stderr == nil || slices.ContainsFunc(m.Stderr, func(re *regexp.Regexp) bool { return re.MatchString(f.Stderr) })
}

// likeOne reports whether a name is like one of the patterns, if there are any.
func likeOne(patterns []string, name string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

// everything reports whether a rule without conditions matches.
func (m *Match) everything() bool {
	return m.Exits == nil && m.Signals == nil && m.Causes == nil && m.Stderr == nil && m.Hosts == nil && m.Roles == nil
}

// Notes says what in a policy does probably not do what it should. maxRestarts is
// what applies to the job.
func (p *Policy) Notes(maxRestarts int) []string {
	counted := func(r Rule) bool {
		return r.Action == Retry && !slices.Equal(r.Causes, []failure.Cause{failure.CauseHostLost})
	}
	var notes []string
	all := ""
	for i := range p.Rules {
		r := &p.Rules[i]
		if all != "" {
			notes = append(notes, fmt.Sprintf("%s:%d: rule %s never decides: rule %s before it matches everything", p.File, r.Line, r.Name, all))
		} else if r.everything() {
			all = r.Name
		}
		if counted(*r) && r.Budget != nil && maxRestarts > 0 && r.Budget.Restarts > maxRestarts {
			notes = append(notes, fmt.Sprintf("%s:%d: rule %s has a budget of %d restarts, but the job has %d", p.File, r.Line, r.Name, r.Budget.Restarts, maxRestarts))
		}
	}
	if maxRestarts == 0 && (p.Default.Line > 0 && counted(p.Default) || slices.ContainsFunc(p.Rules, counted)) {
		notes = append(notes, p.File+": rules retry, but the job has no restarts; set max_restarts in the file, or --max-restarts")
	}
	return notes
}
