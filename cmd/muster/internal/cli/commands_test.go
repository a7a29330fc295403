package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/test/golden"
)

// docs/reference/exit-codes.md has the statuses of each command from their table.
func TestReferenceStatuses(t *testing.T) {
	run := "| status | when |\n|---|---|\n"
	for _, e := range console.Endings {
		run += fmt.Sprintf("| %d | %s |\n", e.Status, e.When)
	}
	var b strings.Builder
	b.WriteString("| command | 0 | 1 | 2 |\n|---|---|---|---|\n")
	for _, c := range subcommands() {
		if c.usage == "" {
			continue
		}
		if c.ends[0] == "" {
			t.Errorf("the table of commands does not say when muster %s succeeds", c.name)
		}
		if strings.Contains(c.usage, "xit status") {
			t.Errorf("the usage of muster %s has its exit status itself", c.name)
		}
		fmt.Fprintf(&b, "| `muster %s` | %s | %s | the command line is wrong |\n", c.name, c.ends[0], c.ends[1])
	}
	golden.Parts(t, "../../../../docs/reference/exit-codes.md", map[string]string{"run": run, "commands": b.String()})
}
