package cli

import (
	"path/filepath"
	"testing"

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
