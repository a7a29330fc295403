package text_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/test/pypeer"
)

var macroCases = []struct{ in, want string }{
	{"", ""},
	{"plain", "plain"},
	{"${local_rank}", "7"},
	{"$local_rank", "7"},
	{"rank=${local_rank}.log", "rank=7.log"},
	{"$local_rank.log", "7.log"},
	{"$local_rank$local_rank", "77"},
	{"$$", "$"},
	{"$$local_rank", "$local_rank"},
	{"$$$local_rank", "$7"},
	{"$$${local_rank}", "$7"},
	{"$", "$"},
	{"a$", "a$"},
	{"a$b", "a$b"},
	{"$ local_rank", "$ local_rank"},
	{"${LOCAL_RANK}", "${LOCAL_RANK}"},
	{"$Local_rank", "$Local_rank"},
	{"${local_rank", "${local_rank"},
	{"${local_rank }", "${local_rank }"},
	{"${}", "${}"},
	{"${", "${"},
	{"$local_rank_", "$local_rank_"},
	{"$local_rank0", "$local_rank0"},
	{"$local_ranké", "7é"},
	{"$é${local_rank}", "$é7"},
	{"${rank}${local_rank}", "${rank}7"},
	{"$1$local_rank", "$17"},
	{"${$local_rank}", "${7}"},
	{"${local_rank${local_rank}", "${local_rank7"},
	{"\xff$local_rank\xff", "\xff7\xff"},
	{"$\n$local_rank", "$\n7"},
}

func TestSubstitute(t *testing.T) {
	for _, tt := range macroCases {
		got := text.Substitute([]string{tt.in}, 7, nil)
		if want := []string{tt.want}; !cmp.Equal(got, want) {
			t.Errorf("Substitute(%q) = %q, want %q", tt.in, got, want)
		}
	}
}

// Names that torch lacks need braces; $$ escapes them as it does torch's.
func TestSubstituteMore(t *testing.T) {
	more := map[string]string{"rank": "9", "hostname": "$local_rank"}
	for in, want := range map[string]string{
		"${rank}/${local_rank}": "9/7", "$rank": "$rank", "$${rank}": "${rank}", "$$${rank}": "$9", "${rank": "${rank", "${rank}}": "9}",
		"${ranks}": "${ranks}", "${hostname}": "$local_rank", "${role_name}": "${role_name}", "${RANK}": "${RANK}", "{rank}": "{rank}",
	} {
		if got := text.Substitute([]string{in}, 7, more); got[0] != want {
			t.Errorf("Substitute(%q) = %q, want %q", in, got[0], want)
		}
	}
}

func TestSubstituteKeepsItsInput(t *testing.T) {
	args := []string{"--rank", "$local_rank"}
	text.Substitute(args, 1, nil)
	if args[1] != "$local_rank" {
		t.Errorf("the caller's slice was changed: %q", args)
	}
}

// Python is asked about the whole table at once.
func TestSubstituteAsPython(t *testing.T) {
	python := pypeer.Python(t)
	var in []string
	for _, tt := range macroCases {
		if !strings.Contains(tt.in, "\xff") { // not text in Python
			in = append(in, tt.in)
		}
	}
	input, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `
import json, string, sys
print(json.dumps([string.Template(a).safe_substitute(local_rank="7") for a in json.load(sys.stdin)]))`)
	cmd.Stdin = strings.NewReader(string(input))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, text.Substitute(in, 7, nil)); diff != "" {
		t.Errorf("differs from string.Template (-python +muster):\n%s", diff)
	}
}

func FuzzSubstitute(f *testing.F) {
	for _, tt := range macroCases {
		f.Add(tt.in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := text.Substitute([]string{in}, 7, nil)[0]
		if !strings.Contains(in, "$") && got != in {
			t.Errorf("%q became %q without a macro", in, got)
		}
		// A text whose every $ is doubled is that text.
		if quoted := strings.ReplaceAll(in, "$", "$$"); text.Substitute([]string{quoted}, 7, nil)[0] != in {
			t.Errorf("%q does not survive quoting", in)
		}
		if len(got) > len(in) {
			t.Errorf("%q grew to %q", in, got)
		}
	})
}
