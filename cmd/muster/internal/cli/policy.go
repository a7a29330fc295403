package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/policy"
)

// policyCommand is `muster policy`.
func policyCommand(_ context.Context, c *command, args []string) error {
	rest, ok := c.arguments(args)
	switch {
	case !ok:
	case len(rest) == 0:
		c.wrong("policy needs to know what to do; give check")
	case rest[0] != "check":
		c.wrong("policy does not know %s; give check", quote(rest[0]))
	case len(rest) != 2:
		c.wrong("policy check takes a policy file, got %s; write muster policy check FILE",
			text.Count(len(rest)-1, "argument"))
	}
	if err := c.refused(); err != nil {
		return err
	}
	p, err := loadPolicy(rest[1])
	if err != nil {
		return err
	}
	return checkPolicy(c.stdout, p)
}

// loadPolicy is policy.Load with the file in each error.
func loadPolicy(file string) (*policy.Policy, error) {
	p, err := policy.Load(file)
	return p, unreadable(file, "a policy", err)
}

// restartPolicy reads --restart-policy. Its max_restarts counts where nobody has said
// another number.
func (r *reader) restartPolicy(cfg *launch.Config) {
	const name = "restart-policy"
	if r.text(name) == "" {
		return
	}
	p := parsed(r, name, loadPolicy)
	if cfg.Policy = p; p == nil {
		return
	}
	if p.MaxRestarts >= 0 && !r.isGiven("max-restarts") {
		cfg.MaxRestarts = p.MaxRestarts
	}
	for _, note := range p.Notes(cfg.MaxRestarts) {
		r.warn("--%s: %s", name, note)
	}
}

// checkPolicy prints what is in a policy, and what may be wrong with it.
func checkPolicy(w io.Writer, p *policy.Policy) error {
	var b strings.Builder
	restarts, most := "as many restarts as --max-restarts says", math.MaxInt
	if p.MaxRestarts >= 0 {
		restarts, most = text.Count(p.MaxRestarts, "restart"), p.MaxRestarts
	}
	fmt.Fprintf(&b, "%s: %s, %s\n", p.File, text.Count(len(p.Rules), "rule"), restarts)
	for i := range p.Rules {
		fmt.Fprintf(&b, "  %s (line %d): %s\n", p.Rules[i].Name, p.Rules[i].Line, ruleText(&p.Rules[i]))
	}
	fmt.Fprintf(&b, "  all others: %s\n", ruleText(&p.Default))
	if n := p.NoProgress; n != nil {
		fmt.Fprintf(&b, "  no progress: stop after %s\n", text.Count(n.Restarts, "restart"))
	}
	for _, note := range p.Notes(most) {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
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
