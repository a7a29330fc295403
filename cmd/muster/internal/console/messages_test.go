package console

import (
	"fmt"
	"strings"
	"testing"
)

// IDs count on without a gap, so that none is left out or given to another message; no two
// messages have the same text.
func TestMessages(t *testing.T) {
	seen := map[string]string{}
	n := 1000
	for line := range strings.Lines(messages) {
		n++
		id, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if want := fmt.Sprintf("M%d", n); id != want {
			t.Errorf("got %s, want %s: an ID without a message stays as a line, and a new message comes last", id, want)
		}
		if seen[text] != "" && text != "" {
			t.Errorf("%s has the text of %s: %s", id, seen[text], text)
		}
		seen[text] = id
		if got := tag(strings.ReplaceAll(text, "…", "x y")); text != "" && got != " ["+id+"]" {
			t.Errorf("%s is found as %q: %s", id, got, text)
		}
	}
	if n < 1176 {
		t.Errorf("the last ID is M%d: lines are missing", n)
	}
}

func TestTag(t *testing.T) {
	idOf := func(text string) string {
		for line := range strings.Lines(messages) {
			if id, pattern, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); pattern == text {
				return " [" + id + "]"
			}
		}
		t.Fatalf("there is no message %q", text)
		return ""
	}
	for _, tt := range []struct{ message, want string }{
		{"restarting the worker group", "restarting the worker group"},
		{"the workers hang: no output for 3s", "the workers hang: …"},
		{"a node of the round has left; stopping the workers for a new round, no restart is counted",
			"a node of the round has left; stopping the workers for a new round, no restart is counted"},
		{"muster restart on host1 asks for new workers; stopping the workers for a new round, no restart is counted",
			"…; stopping the workers for a new round, no restart is counted"},
		{"muster-quorum serve died and is started again", "muster-quorum … died and is started again"},
		{"muster-quorum serve", "muster-quorum …"},
		{"c10d rendezvous at host0:29400: tcpstore: connect to host0 (10.0.0.1:29400): connection refused; check", "…tcpstore: connect to …"},
		{"c10d rendezvous at host0:29400: unlike any other", "… rendezvous at …: …"},
		{`rendezvous of run "a": join timed out after 2s: 1 of 2 nodes have joined`, "…rendezvous of run …: … timed out after …"},
	} {
		if got, want := tag(tt.message), idOf(tt.want); got != want {
			t.Errorf("%q has%s, want%s", tt.message, got, want)
		}
	}
	for _, message := range []string{"", "restarting", "restarting the worker group now", "the workers hang", "muster", "x"} {
		if got := tag(message); got != "" {
			t.Errorf("%q has%s", message, got)
		}
	}
}
