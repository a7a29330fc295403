package agent

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
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

// atOnce is a decision without its back-off: those who continue wait for nothing.
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

// decisionAttr is a decision for the log.
func decisionAttr(d *policy.Decision) []any {
	if d == nil {
		return nil
	}
	return []any{"decision", d.String()}
}
