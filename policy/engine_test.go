package policy_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/policy"
)

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestMatch(t *testing.T) {
	p := parse(t, `
rules:
  - {name: exits, match: {exit: [66, 70-79], signal: SIGBUS}, action: drain}
  - {name: both, match: {cause: oom, host: 'gpu-*'}, action: stop}
  - {name: oom, match: {cause: [oom, timer]}, action: retry}
  - {name: text, match: {stderr: ['ECC error', '^Xid \d+$']}, action: stop}
  - {name: role, match: {role: [eval, 'test?']}, action: stop}
  - {name: lost, match: {cause: host lost, host: gpu-*}, action: retry}
  - {name: start, match: {cause: [not started, exit code], exit: 1}, action: retry}
  - {name: stuck, match: {cause: uninterruptible}, action: drain}
`)
	for _, tt := range []struct {
		name string
		f    policy.Failure
		want string
	}{
		{"exit", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 66}, "exits"},
		{"in a range", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 79}, "exits"},
		{"after it", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 80}, "default"},
		{"signal", policy.Failure{Cause: failure.CauseSignal, ExitCode: -7}, "exits"},
		{"another signal", policy.Failure{Cause: failure.CauseSignal, ExitCode: -9}, "default"},
		{"a signal is not an exit status", policy.Failure{Cause: failure.CauseSignal, ExitCode: -66}, "default"},
		{"all conditions", policy.Failure{Cause: failure.CauseOOM, ExitCode: -9, Host: "gpu-7"}, "both"},
		{"not all", policy.Failure{Cause: failure.CauseOOM, ExitCode: -9, Host: "cpu-7"}, "oom"},
		{"one of a list", policy.Failure{Cause: failure.CauseTimer, ExitCode: -9}, "oom"},
		{"text", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 1, Stderr: "a\nthe ECC error\nb"}, "text"},
		{"at a line", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 1, Stderr: "a\nXid 79\nb"}, "text"},
		{"not at a line", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 2, Stderr: "a Xid 79\nb"}, "default"},
		{"role", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 2, Role: "test1"}, "role"},
		{"another role", policy.Failure{Cause: failure.CauseExitCode, ExitCode: 2, Role: "test12"}, "default"},
		{"a lost host", policy.Failure{Cause: failure.CauseHostLost, Host: "gpu-1"}, "lost"},
		{"one that no rule names", policy.Failure{Cause: failure.CauseHostLost, Host: "cpu-1", Role: "eval"}, ""},
		{"not started", policy.Failure{Cause: failure.CauseNotStarted, ExitCode: 1}, "start"},
		{"stuck", policy.Failure{Cause: failure.CauseUninterruptible, ExitCode: -9}, "stuck"},
	} {
		d := (&policy.Engine{Policy: p, MaxRestarts: 1}).Decide(tt.f, start)
		if d.Rule != tt.want {
			t.Errorf("%s: rule %q, want %q", tt.name, d.Rule, tt.want)
		}
	}
	if !p.Names(failure.CauseHostLost) || p.Names(failure.CauseHang) {
		t.Error("Names")
	}
}

// More of stderr may change the decision only until a rule before has matched.
func TestUnsettled(t *testing.T) {
	p := parse(t, `
rules:
  - {name: early, match: {exit: 3}, action: stop}
  - {name: text, match: {exit: [4, 3], stderr: ECC}, action: drain}
`)
	for _, tt := range []struct {
		f    policy.Failure
		want bool
	}{
		{policy.Failure{ExitCode: 3}, false}, {policy.Failure{ExitCode: 4}, true},
		{policy.Failure{ExitCode: 4, Stderr: "ECC"}, false}, {policy.Failure{ExitCode: 5}, false},
	} {
		if got := p.Unsettled(tt.f); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.f, got, tt.want)
		}
	}
}

// A step is a failure after a while, and what is decided.
type step struct {
	after time.Duration
	f     policy.Failure
	want  string
}

// shown is a decision in one line.
func shown(d policy.Decision) string {
	s := string(d.Action) + " " + d.Rule
	if d.Delay > 0 {
		s += " " + d.Delay.String()
	}
	if d.Why != "" {
		s += ": " + d.Why
	}
	return s
}

func run(t *testing.T, name, text string, restarts int, steps []step) {
	t.Helper()
	e := &policy.Engine{Policy: parse(t, text), MaxRestarts: restarts, Rand: rand.New(rand.NewPCG(1, 2))}
	now, used := start, 0
	for i, s := range steps {
		now = now.Add(s.after)
		s.f.Restarts = used
		if s.f.Cause == "" {
			s.f.Cause = failure.CauseExitCode
		}
		d := e.Decide(s.f, now)
		if got := shown(d); got != s.want {
			t.Errorf("%s: failure %d: %q, want %q", name, i, got, s.want)
		}
		if again := e.Decide(s.f, now); again.Action != d.Action || again.Budget != d.Budget || again.Streak != d.Streak {
			t.Errorf("%s: failure %d: %+v, and when asked again %+v", name, i, d, again)
		}
		e.Record(d)
		if d.Action == policy.Retry && s.f.Cause != failure.CauseHostLost {
			used++
		}
	}
}

func TestDecide(t *testing.T) {
	oom, lost := policy.Failure{Cause: failure.CauseOOM, ExitCode: -9}, policy.Failure{Cause: failure.CauseHostLost, Host: "b"}
	ran := func(d time.Duration) policy.Failure { return policy.Failure{Cause: failure.CauseOOM, Ran: d} }
	at := func(step int64, files string) policy.Failure {
		return policy.Failure{Progress: policy.Progress{Step: step, Files: files}}
	}
	const budget = "rules: [{name: oom, match: {cause: oom}, action: retry, budget: {restarts: 2, window: 1h}}]"
	const backoff = "rules: [{name: oom, match: {cause: oom}, action: retry, backoff: {initial: 5s, factor: 2, max: 1m}}]"
	const lostRule = "rules: [{name: lost, match: {cause: host lost}, action: retry, budget: {restarts: 1}}]"
	for _, tt := range []struct {
		name, text string
		restarts   int
		steps      []step
	}{
		{"as without a policy", "{}", 2, []step{
			{0, oom, "retry default"}, {0, oom, "retry default"}, {0, oom, "stop default: the job's 2 restarts are used up"}}},
		{"none at all", "{}", 0, []step{{0, oom, "stop default: the job has no restarts"}}},
		{"stop and drain", "rules: [{match: {exit: 3}, action: drain}]\ndefault: {action: stop}", 2, []step{
			{0, oom, "stop default"}, {0, policy.Failure{ExitCode: 3}, "drain #1"}}},
		{"budget", budget, 9, []step{
			{0, oom, "retry oom"}, {30 * time.Minute, oom, "retry oom"},
			{time.Minute, oom, "stop oom: its budget of 2 restarts in 1h is used up"},
			{time.Minute, policy.Failure{ExitCode: 1}, "retry default"},
			{28 * time.Minute, oom, "retry oom"}, // the first is an hour ago
			{time.Minute, oom, "stop oom: its budget of 2 restarts in 1h is used up"}}},
		{"budget without a window", "default: {action: retry, budget: {restarts: 1}}", 9, []step{
			{0, oom, "retry default"}, {1000 * time.Hour, oom, "stop default: its budget of 1 restart is used up"}}},
		{"no budget", "default: {action: retry, budget: {restarts: 0}}", 9, []step{
			{0, oom, "stop default: its budget of 0 restarts is used up"}}},
		{"back-off", backoff, 99, []step{
			{0, oom, "retry oom 5s"}, {0, oom, "retry oom 10s"}, {0, policy.Failure{ExitCode: 1}, "retry default"},
			{0, oom, "retry oom 20s"}, {0, oom, "retry oom 40s"}, {0, oom, "retry oom 1m0s"}, {0, oom, "retry oom 1m0s"},
			{0, ran(10*time.Minute - 1), "retry oom 1m0s"}, {0, ran(10 * time.Minute), "retry oom 5s"}, {0, oom, "retry oom 10s"}}},
		{"back-off and progress", backoff + "\nno_progress: {restarts: 9, heartbeat: true}", 99, []step{
			{0, at(0, ""), "retry default"}, {0, oom, "retry oom 5s"}, {0, oom, "retry oom 10s"},
			{0, policy.Failure{Cause: failure.CauseOOM, Progress: policy.Progress{Step: 7}}, "retry oom 5s"}}},
		{"jitter", "default: {action: retry, backoff: {initial: 10s, jitter: 0.5, factor: 1}}", 9, []step{
			{0, oom, "retry default 6.618s"}, {0, oom, "retry default 7.457s"}}},
		{"steps", "no_progress: {restarts: 2, heartbeat: true}", 99, []step{
			{0, at(100, ""), "retry default"}, {0, at(100, ""), "retry default"}, {0, at(101, ""), "retry default"},
			{0, at(50, ""), "retry default"}, {0, at(101, ""), "stop default: no progress in 2 restarts: no heartbeat of a step after 101"}}},
		{"no step ever", "no_progress: {restarts: 1, heartbeat: true}", 99, []step{
			{0, at(0, ""), "retry default"}, {0, at(0, ""), "stop default: no progress in 1 restart: no heartbeat of a step after 0"}}},
		{"files", "no_progress: {restarts: 1, file: [ckpt, log]}", 99, []step{
			{0, at(0, "a"), "retry default"}, {0, at(0, "b"), "retry default"}, {0, at(9, "c"), "retry default"},
			{0, at(10, "c"), "stop default: no progress in 1 restart: no change of ckpt or log"}}},
		{"files that cannot be looked at", "no_progress: {restarts: 2, file: ckpt}", 99, []step{
			{0, at(0, "a"), "retry default"}, {0, at(0, ""), "retry default"},
			{0, at(0, "a"), "stop default: no progress in 2 restarts: no change of ckpt"}}},
		{"either", "no_progress: {restarts: 1, file: ckpt, heartbeat: true}", 99, []step{
			{0, at(1, "a"), "retry default"}, {0, at(1, "b"), "retry default"}, {0, at(2, "b"), "retry default"},
			{0, at(2, "b"), "stop default: no progress in 1 restart: no heartbeat of a step after 2, no change of ckpt"}}},
		{"lost hosts are not counted", lostRule, 0, []step{
			{0, lost, "retry lost"}, {0, lost, "stop lost: its budget of 1 restart is used up"}}},
		{"lost hosts without a rule", "{}", 0, []step{{0, lost, " "}}},
	} {
		run(t, tt.name, tt.text, tt.restarts, tt.steps)
	}
}

// Another host's decisions count as one's own, also after their way through JSON.
func TestRecordOfAnotherHost(t *testing.T) {
	p := parse(t, "rules: [{name: oom, match: {cause: oom}, action: retry, budget: {restarts: 2}, backoff: {initial: 1s}}]\n"+
		"no_progress: {restarts: 3, heartbeat: true}")
	a := &policy.Engine{Policy: p, MaxRestarts: 9}
	b := &policy.Engine{Policy: p, MaxRestarts: 9}
	f := policy.Failure{Cause: failure.CauseOOM, Progress: policy.Progress{Step: 5}}
	d := a.Decide(f, start)
	a.Record(d)
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var heard policy.Decision
	if err := json.Unmarshal(text, &heard); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, heard); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b.Record(heard)
	if diff := cmp.Diff(a.Decide(f, start), b.Decide(f, start)); diff != "" {
		t.Errorf("-own +other's:\n%s", diff)
	}
	if d := b.Decide(f, start); d.Budget != 0 || d.Delay != 2*time.Second || d.Stalled != 2 {
		t.Errorf("%+v", d)
	}
	b.Record(policy.Decision{Action: policy.Retry, Rule: "of another policy"})
}

func TestDecisionString(t *testing.T) {
	for _, tt := range []struct {
		d    policy.Decision
		want string
	}{
		{policy.Decision{Action: policy.Stop, Rule: "bad-gpu", Source: "p.yaml:3"}, "stopped by rule bad-gpu of p.yaml:3"},
		{policy.Decision{Action: policy.Stop, Rule: "oom", Source: "p.yaml:3", Why: "enough"}, "stopped by rule oom of p.yaml:3: enough"},
		{policy.Decision{Action: policy.Drain, Rule: "default", Source: "p.yaml"}, "drained by the default of p.yaml"},
		{policy.Decision{Action: policy.Retry, Rule: "#2", Source: "p.yaml:9"}, "retried by rule #2 of p.yaml:9"},
		{policy.Decision{}, "no rule applies"},
	} {
		if got := tt.d.String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", ""}, {"blank", "\n \n", ""}, {"one line", "a\n", "a"}, {"some", "a\nb", "a\nb"}, {"bytes", "a\xff", "a\uFFFD"},
		{"lines", strings.Repeat("a\n", 60), strings.TrimSpace(strings.Repeat("a\n", 50))},
		{"a long line", strings.Repeat("x", 10000), strings.Repeat("x", 8<<10)},
		{"whole lines", strings.Repeat(long+"\n", 49) + strings.Repeat("y", 8<<10-200), long + "\n" + strings.Repeat("y", 8<<10-200)},
	} {
		if diff := cmp.Diff(tt.want, policy.Tail([]byte(tt.text))); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
	}
}
