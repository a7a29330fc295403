package server_test

import (
	"testing"

	"github.com/muster-run/muster/internal/test/golden"
)

// TestScenarios plays the files of testdata/scenarios, whose README says how they are written.
func TestScenarios(t *testing.T) {
	golden.Scenarios(t, "testdata/scenarios", func(t *testing.T) func(string) string { return newLab(t).run })
}
