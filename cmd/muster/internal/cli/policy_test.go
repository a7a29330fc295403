package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/muster-run/muster/policy"
)

// The example has what the documentation explains.
func TestPolicyExample(t *testing.T) {
	p, err := policy.Load(filepath.Join("..", "..", "..", "..", "examples", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if notes := p.Notes(p.MaxRestarts); notes != nil || len(p.Rules) != 5 || p.NoProgress == nil {
		t.Errorf("%q, %+v", notes, p)
	}
}

// What is no file of events has no lines, perhaps.
func TestReplayOfAnEndlessLine(t *testing.T) {
	err := (&policyRequest{events: "f"}).replay(&policy.Policy{}, bytes.NewReader(make([]byte, maxEventLine+1)), io.Discard, io.Discard)
	if want := "f: a line has more than 4 MiB; is this a file of events?"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Whatever is in a file of events, and whatever the policy: a table or an error.
func FuzzReplay(f *testing.F) {
	failures, err := os.ReadFile("../../../../examples/failures.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(failures)
	f.Add([]byte(`{"name": "muster.attempt.failed", "timestamp": -1e18, "metadata": {"max_restarts": -9, "ran_ms": 9000000000000000000, "exit_code": -9999, "cause": "signal"}}`))
	f.Add([]byte("{\"name\": \"muster.attempt.failed\", \"metadata\": {\"run_id\": \"\x1b[2J\", \"failed_host\": \"\u202e\"}}\n{\n\n7\n"))
	p, err := policy.Load("../../../../examples/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, req := range []policyRequest{{events: "f", maxRestarts: -1}, {events: "f", maxRestarts: 1, json: true}} {
			var out, said strings.Builder
			err := req.replay(p, bytes.NewReader(text), &out, &said)
			if (err == nil) != (out.Len() > 0) {
				t.Errorf("error %v, and %d bytes", err, out.Len())
			}
			if strings.ContainsFunc(out.String()+said.String(), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) {
				t.Errorf("control characters: %q", out.String())
			}
		}
	})
}
