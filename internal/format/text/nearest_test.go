package text_test

import (
	"testing"

	"github.com/muster-run/muster/internal/format/text"
)

func TestNearest(t *testing.T) {
	words := []string{"max_restarts", "rules", "default", "no_progress", "exit"}
	for _, tt := range []struct{ typed, want string }{
		{"max-restarts", "max_restarts"}, {"maxrestart", "max_restarts"}, {"rule", "rules"}, {"ruels", "rules"},
		{"no progress", "no_progress"}, {"exti", "exit"}, {"DEFAULT", "default"}, {"max", "max_restarts"},
		{"", ""}, {"x", ""}, {"budget", ""}, {"something else altogether", ""},
		{"rulesets", ""}, {"no_pros", "no_progress"}, {"xit", ""},
	} {
		if got := text.Nearest(tt.typed, words...); got != tt.want {
			t.Errorf("Nearest(%q) = %q, want %q", tt.typed, got, tt.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"a", "", 1}, {"module", "mdoule", 1}, {"role", "roles", 1}} {
		if got := text.Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
