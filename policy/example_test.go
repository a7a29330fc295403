package policy_test

import (
	"fmt"
	"time"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/policy"
)

// Two failures for lack of memory within an hour are one more than the rule has
// restarts.
func Example() {
	p, err := policy.Parse([]byte(`
max_restarts: 10
rules:
  - name: oom
    match: {cause: oom}
    action: retry
    budget: {restarts: 1, window: 1h}
    backoff: {initial: 5s}
`), "policy.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	engine := &policy.Engine{Policy: p, MaxRestarts: p.MaxRestarts}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for range 2 {
		d := engine.Decide(policy.Failure{Cause: failure.CauseOOM, ExitCode: -9}, now)
		engine.Record(d)
		fmt.Println(d.Action, d.Delay, d)
		now = now.Add(10 * time.Minute)
	}
	// Output:
	// retry 5s retried by rule oom of policy.yaml:4
	// stop 0s stopped by rule oom of policy.yaml:4: its budget of 1 restart in 1h is used up
}
