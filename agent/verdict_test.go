package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/muster-run/muster/agent/internal/peers"
	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/policy"
)

// The words of a policy are those that decide.Next knows.
func TestVerdicts(t *testing.T) {
	for action, verdict := range map[policy.Action]decide.Verdict{
		policy.Retry: decide.Retry, policy.Stop: decide.Stop, policy.Drain: decide.Drain,
	} {
		if string(action) != string(verdict) {
			t.Errorf("%s is not %s", action, verdict)
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
		if rec, err := peers.ParseRecord([]byte(tt.text)); (err == nil) != tt.ok {
			t.Errorf("%s: %+v, %v", tt.text, rec, err)
		}
	}
}

// A record's texts are one printable line each, of bounded length.
func TestParseRecordText(t *testing.T) {
	long := strings.Repeat("x", 50<<10)
	text, err := json.Marshal(peers.Record{Host: "h\x1b[2J\x07", Cause: "a\nb" + long, Decision: &policy.Decision{Rule: "r\x07", Source: "s\x07", Why: "w\u202e"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := peers.ParseRecord(text)
	if err != nil {
		t.Fatal(err)
	}
	if r.Host != "h" || len(r.Cause) > 2000 || !strings.HasPrefix(r.Cause, "a bx") || r.Decision.Rule != "r" || r.Decision.Source != "s" || r.Decision.Why != "w" {
		t.Errorf("%.100q, %.100q (%d bytes), %+v", r.Host, r.Cause, len(r.Cause), r.Decision)
	}
}
