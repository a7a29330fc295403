package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// STYLE.md quotes the code as it is: each block begins with the file that has its lines.
func TestStyleQuotesTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "STYLE.md"))
	if err != nil {
		t.Fatal(err)
	}
	quotes := regexp.MustCompile("(?s)```go\n// ([^\n]+)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if blocks := strings.Count(string(text), "```go\n"); blocks == 0 || len(quotes) != blocks {
		t.Errorf("%d of %d blocks of code begin with the name of a file", len(quotes), blocks)
	}
	for _, quote := range quotes {
		if code, err := os.ReadFile(filepath.Join(root, quote[1])); err != nil || !strings.Contains(string(code), quote[2]) {
			t.Errorf("%s does not have these lines (%v); quote others:\n%s", quote[1], err, quote[2])
		}
	}
	story := regexp.MustCompile("(?s)```\n(# .*?)```").FindStringSubmatch(string(text))
	const scenarios = "rendezvous/internal/server/testdata/scenarios/losses.txt"
	if code, err := os.ReadFile(filepath.Join(root, scenarios)); err != nil || story == nil || !strings.Contains(string(code), story[1]) {
		t.Errorf("%s does not have the scenario of STYLE.md (%v)", scenarios, err)
	}
}
