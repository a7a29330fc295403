package agent

import (
	"testing"

	"github.com/muster-run/muster/policy"
)

// What next has found, and what a rule makes of it.
func TestJudged(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict policy.Action
		ev      event
		left    int
		state   State
		act     action
	}{
		{"retry", policy.Retry, evFailed, 5, Stopped, actRestart},
		{"stop", policy.Stop, evFailed, 5, Failed, actFail},
		{"drain", policy.Drain, evFailed, 5, Failed, actDepart},
		{"drain without restarts", policy.Drain, evFailed, 0, Failed, actDepart},
		{"retry of lost peers", policy.Retry, evNoNews, 5, Stopped, actRestart},
		{"stop of lost peers", policy.Stop, evNoNews, 5, Failed, actFail},
		{"no rule for what cannot start", "", evStartFailed, 5, Failed, actFail},
		{"retry of what cannot start", policy.Retry, evStartFailed, 5, Stopped, actRestart},
		{"drain of what cannot start", policy.Drain, evStartFailed, 5, Failed, actDepart},
		{"no rule for what is stuck", "", evUnhealthy, 5, Unhealthy, actFail},
		{"stuck, after the others were told to restart", policy.Retry, evUnhealthy, 5, Unhealthy, actFail},
		{"stop of what is stuck", policy.Stop, evUnhealthy, 5, Unhealthy, actFail},
		{"drain of what is stuck", policy.Drain, evUnhealthy, 5, Failed, actDepart},
	} {
		state, act := next(tt.ev, running, tt.left)
		if state, act = judged(tt.verdict, tt.ev, state, act); state != tt.state || act != tt.act {
			t.Errorf("%s: %s, action %d, want %s, action %d", tt.name, state, act, tt.state, tt.act)
		}
	}
}

// What another agent writes is not believed blindly.
func TestParseRecordDecision(t *testing.T) {
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{`{"node": 1, "decision": {"action": "retry", "rule": "r", "budget": -1, "delay": 5000000000}}`, true},
		{`{"node": 1, "decision": {"action": "retry", "delay": -1}}`, false},
		{`{"node": 1, "decision": {"action": "retry", "delay": 9000000000000000000}}`, false},
		{`{"node": 1, "decision": {"streak": -1}}`, false},
		{`{"node": 1, "decision": {"time": "yesterday"}}`, false},
		{`{"node": 1, "decision": 7}`, false},
	} {
		if rec, err := parseRecord([]byte(tt.text)); (err == nil) != tt.ok {
			t.Errorf("%s: %+v, %v", tt.text, rec, err)
		}
	}
}
