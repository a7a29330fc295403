package cli

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/runline"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/policy"
)

// policyCommand is `muster policy`.
func policyCommand(_ context.Context, c *command.Command, args []string) error {
	rest, ok := c.Arguments(args)
	switch {
	case !ok:
	case len(rest) == 0:
		c.Wrong("policy takes a command; give check")
	case rest[0] != "check":
		c.Wrong("policy does not know %s; give check", console.Quote(rest[0]))
	case len(rest) != 2:
		c.Wrong("policy check takes a policy file, got %s; write muster policy check FILE",
			text.Count(len(rest)-1, "argument"))
	}
	if err := c.Refused(); err != nil {
		return err
	}
	p, err := runline.LoadPolicy(rest[1])
	if err != nil {
		return err
	}
	checkPolicy(c.Stdout, p)
	return nil
}

// checkPolicy prints what is in a policy, and what may be wrong with it.
func checkPolicy(w io.Writer, p *policy.Policy) {
	restarts, most := "as many restarts as --max-restarts says", math.MaxInt
	if p.MaxRestarts >= 0 {
		restarts, most = text.Count(p.MaxRestarts, "restart"), p.MaxRestarts
	}
	fmt.Fprintf(w, "%s: %s, %s\n", p.File, text.Count(len(p.Rules), "rule"), restarts)
	for i := range p.Rules {
		fmt.Fprintf(w, "  %s (line %d): %s\n", p.Rules[i].Name, p.Rules[i].Line, ruleText(&p.Rules[i]))
	}
	fmt.Fprintf(w, "  all others: %s\n", ruleText(&p.Default))
	if n := p.NoProgress; n != nil {
		fmt.Fprintf(w, "  no progress: stop after %s\n", text.Count(n.Restarts, "restart"))
	}
	for _, note := range p.Notes(most) {
		fmt.Fprintf(w, "note: %s\n", note)
	}
}

// ruleText says what a rule does.
func ruleText(r *policy.Rule) string {
	s := string(r.Action)
	if r.All {
		s += " all"
	}
	if r.Budget != nil {
		s += ", at most " + r.Budget.String()
	}
	if b := r.Backoff; b != nil {
		s += fmt.Sprintf(", after %v up to %v", b.Initial, b.Max)
	}
	return s
}
