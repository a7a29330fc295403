package logs_test

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/logs"
)

// Source: Std.from_str, and what torchrun 2.15 does with these texts.
func TestParseStd(t *testing.T) {
	const none, out, stderr, all = logs.Std(0), logs.StdOut, logs.StdErr, logs.StdAll
	tests := []struct {
		text string
		want map[int]logs.Std // of ranks 0 to 2 and 10
		bad  string           // part of the error
	}{
		{text: "0", want: map[int]logs.Std{0: none, 1: none, 2: none, 10: none}},
		{text: "1", want: map[int]logs.Std{0: out, 1: out, 2: out, 10: out}},
		{text: "2", want: map[int]logs.Std{0: stderr, 1: stderr, 2: stderr, 10: stderr}},
		{text: "3", want: map[int]logs.Std{0: all, 1: all, 2: all, 10: all}},
		{text: "3\n", want: map[int]logs.Std{0: all, 1: all, 2: all, 10: all}},
		{text: "0:3,1:0", want: map[int]logs.Std{0: all, 1: none, 2: none, 10: none}},
		{text: "0:3,1:2\n", want: map[int]logs.Std{0: all, 1: stderr, 2: none, 10: none}},
		{text: "1:1,1:2", want: map[int]logs.Std{0: none, 1: stderr, 2: none, 10: none}},
		{text: "7:3", want: map[int]logs.Std{0: none, 1: none, 2: none, 10: none}},
		{text: "10:1", want: map[int]logs.Std{0: none, 1: none, 2: none, 10: out}}, // P8: torchrun refuses it
		{text: "010:1", want: map[int]logs.Std{0: none, 1: none, 2: none, 10: out}},
		{text: "4", bad: `"4": value "4" is not 0, 1, 2 or 3`},
		{text: "03", bad: `value "03"`},
		{text: " 1", bad: `value " 1"`},
		{text: "-1", bad: `value "-1"`},
		{text: "", bad: "empty"},
		{text: "\n", bad: "empty"},
		{text: "3\n\n", bad: `value "3\n"`},
		{text: "3,3", bad: `entry "3" is not of the form rank:value`},
		{text: "0:1,", bad: `entry "" is not`},
		{text: ",0:1", bad: `entry "" is not`},
		{text: "0:4", bad: `value "4"`},
		{text: "0:", bad: `value ""`},
		{text: ":1", bad: "a local rank is missing"},
		{text: "x:1", bad: `local rank "x" is not a number`},
		{text: "-1:1", bad: `local rank "-1" is not a number`},
		{text: "0:1:2", bad: `value "1:2"`},
		{text: "99999999999999999999:1", bad: "is too large"},
		{text: strings.Repeat("0:1,", 1<<20), bad: "too long"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%.20q", tt.text), func(t *testing.T) {
			spec, err := logs.ParseStd(tt.text)
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) || len(err.Error()) > 500 {
					t.Fatalf("error %v, want one with %q", err, tt.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for rank, want := range tt.want {
				if got := spec.For(rank); got != want {
					t.Errorf("For(%d) = %v, want %v", rank, got, want)
				}
			}
			again, err := logs.ParseStd(spec.String())
			if err != nil || !reflect.DeepEqual(again, spec) {
				t.Errorf("String() = %q, which reads as %v, %v", spec.String(), again, err)
			}
		})
	}
}

// torch's own pattern, but for the number of a rank's digits.
var torchStd = regexp.MustCompile(`^(?:[0123]|([0-9]+:[0123],)*([0-9]+:[0123]))\n?$`)

func FuzzParseStd(f *testing.F) {
	for _, s := range []string{"0", "3", "3\n", "0:3,1:0", "10:1", "0:1,", "4", "", "1:1,1:2", "x:1", "0:99"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := logs.ParseStd(text)
		if err != nil {
			if torchStd.MatchString(text) && !strings.Contains(err.Error(), "too l") {
				t.Fatalf("ParseStd(%q): %v, but the form is right", text, err)
			}
			return
		}
		if !torchStd.MatchString(text) {
			t.Fatalf("ParseStd(%q) = %v, but the form is wrong", text, spec)
		}
		again, err := logs.ParseStd(spec.String())
		if err != nil || !reflect.DeepEqual(again, spec) {
			t.Fatalf("%q: String() = %q, which reads as %v, %v", text, spec, again, err)
		}
		for r := range 12 {
			if s := spec.For(r); s > logs.StdAll {
				t.Fatalf("%q: stream %d", text, s)
			}
		}
	})
}
