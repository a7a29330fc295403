package logs

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

var prefixVars = map[string]string{"role_name": "tr", "local_rank": "1", "rank": "$7", "hostname": "h"}

// Source: golden/filters, and string.Template.
func TestExpand(t *testing.T) {
	for _, tt := range []struct{ template, want string }{
		{defaultLinePrefix, "[tr1]:"},
		{"[${rank}/${local_rank}/${role_name}/${hostname}/${nope}/$rank/$$] ", "[$7/1/tr/h/${nope}/$7/$] "},
		{"", ""},
		{"$", "$"},
		{"$$$", "$$"},
		{"$$rank", "$rank"},
		{"$rank_", "$rank_"}, // another name
		{"$rank-", "$7-"},
		{"$ranké", "$7é"},
		{"${rank", "${rank"},
		{"${rank}}", "$7}"},
		{"${}", "${}"},
		{"${ rank}", "${ rank}"},
		{"$RANK", "$RANK"},
		{"$1", "$1"},
		{"${1}", "${1}"},
		{"$_x$hostname", "$_xh"},
		{"${nope$rank}", "${nope$7}"},
		{"\xff$rank\x00", "\xff$7\x00"},
	} {
		if got := expand(tt.template, prefixVars); got != tt.want {
			t.Errorf("expand(%q) = %q, want %q", tt.template, got, tt.want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{defaultLinePrefix, "${rank}$rank$$${nope}", "$", "${", "$$${rank", "é$hostname"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, template string) {
		got := expand(template, prefixVars)
		if !strings.Contains(template, "$") && got != template {
			t.Errorf("expand(%q) = %q", template, got)
		}
		// What no name is known for changes only by $$.
		none := expand(template, nil)
		if strings.ReplaceAll(none, "$", "") != strings.ReplaceAll(template, "$", "") {
			t.Errorf("expand(%q) without names = %q", template, none)
		}
	})
}

// Python itself is the judge.
func TestExpandLikePython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	pieces := []string{"$", "$$", "{", "}", "rank", "hostname", "_", "x", "1", "é", " ", "${rank}", "$role_name", "${local_rank}"}
	var templates []string
	for i := range 3000 { // all sequences of a few pieces, some long
		var b strings.Builder
		for n := i*7919 + 17; n > 0; n /= len(pieces) {
			b.WriteString(pieces[n%len(pieces)])
		}
		templates = append(templates, b.String())
	}
	input, err := json.Marshal(map[string]any{"templates": templates, "vars": prefixVars})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `
import json, string, sys
d = json.load(sys.stdin)
json.dump([string.Template(t).safe_substitute(**d["vars"]) for t in d["templates"]], sys.stdout)`)
	cmd.Stdin = strings.NewReader(string(input))
	output, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	if err := json.Unmarshal(output, &want); err != nil {
		t.Fatal(err)
	}
	for i, template := range templates {
		if got := expand(template, prefixVars); got != want[i] {
			t.Errorf("expand(%q) = %q, Python has %q", template, got, want[i])
		}
	}
}
