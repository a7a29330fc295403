package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/muster-run/muster/policy"
)

// What a rule makes of an event.
func TestNextVerdict(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict policy.Action
		ev      event
		ph      phase
		left    int
		state   State
		act     action
	}{
		{"retry", policy.Retry, evFailed, running, 5, Stopped, actRestart},
		{"retry without restarts", policy.Retry, evFailed, running, 0, Stopped, actRestart},
		{"retry, after the others were told", policy.Retry, evFailed, failing, 5, Stopped, actRestart},
		{"stop", policy.Stop, evFailed, running, 5, Failed, actFail},
		{"drain", policy.Drain, evFailed, running, 5, Failed, actDepart},
		{"drain without restarts", policy.Drain, evFailed, running, 0, Failed, actDepart},
		{"retry of lost peers", policy.Retry, evNoNews, listening, 5, Stopped, actRestart},
		{"stop of lost peers", policy.Stop, evNoNews, listening, 5, Failed, actFail},
		{"no rule for what cannot start", "", evStartFailed, running, 5, Failed, actFail},
		{"retry of what cannot start", policy.Retry, evStartFailed, running, 5, Stopped, actRestart},
		{"drain of what cannot start", policy.Drain, evStartFailed, running, 5, Failed, actDepart},
		{"no rule for what is stuck", "", evUnhealthy, running, 5, Unhealthy, actFail},
		{"stuck, after the others were told to restart", policy.Retry, evUnhealthy, failing, 5, Unhealthy, actFail},
		{"stop of what is stuck", policy.Stop, evUnhealthy, running, 5, Unhealthy, actFail},
		{"drain of what is stuck", policy.Drain, evUnhealthy, running, 5, Failed, actDepart},
		{"stop for a lost host", policy.Stop, evNodeGone, running, 5, Failed, actGiveUp},
		{"stop for a lost host, as nodes wait", policy.Stop, evNodesWaiting, running, 5, Failed, actGiveUp},
		{"stop for a lost host, after the others were told", policy.Stop, evNodeGone, failing, 5, Failed, actWatch},
		{"retry of a lost host", policy.Retry, evNodeGone, running, 0, Stopped, actRejoin},
	} {
		if state, act := next(tt.ev, tt.ph, tt.left, tt.verdict); state != tt.state || act != tt.act {
			t.Errorf("%s: %s, action %d, want %s, action %d", tt.name, state, act, tt.state, tt.act)
		}
	}
}

// What another agent writes is not believed blindly.
func TestParseRecord(t *testing.T) {
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
		{`{"node": 1, "decision": {"streak": 9223372036854775807}}`, false},
		{`{"node": 1, "decision": {"stalled": 9223372036854775807}}`, false},
		{`{"node": 1, "restarts": 2147483647}`, true},
		{`{"node": 1, "restarts": 2147483648}`, false},
		{`{"node": 1, "restarts": 9223372036854775807}`, false},
		{`{"node": 1, "restarts": -1}`, false},
	} {
		if rec, err := parseRecord([]byte(tt.text)); (err == nil) != tt.ok {
			t.Errorf("%s: %+v, %v", tt.text, rec, err)
		}
	}
}

// A record's texts are one printable line each, of bounded length.
func TestParseRecordText(t *testing.T) {
	long := strings.Repeat("x", 50<<10)
	text, err := json.Marshal(record{Host: "h\x1b[2J\x07", Cause: "a\nb" + long, Decision: &policy.Decision{Rule: "r\x07", Source: "s\x07", Why: "w\u202e"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	if r.Host != "h" || len(r.Cause) > 2000 || !strings.HasPrefix(r.Cause, "a bx") || r.Decision.Rule != "r" || r.Decision.Source != "s" || r.Decision.Why != "w" {
		t.Errorf("%.100q, %.100q (%d bytes), %+v", r.Host, r.Cause, len(r.Cause), r.Decision)
	}
}
