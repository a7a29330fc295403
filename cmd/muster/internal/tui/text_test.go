package tui_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/tui"
	"github.com/muster-run/muster/internal/text"
)

func TestWidth(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "日本": 4, "한글": 4, "🚀": 2, "…": 1, "\u200b": 0} {
		if got := tui.Width(s); got != want {
			t.Errorf("Width(%q) = %d, want %d", s, got, want)
		}
	}
}

func FuzzFit(f *testing.F) {
	for _, s := range []string{"abc", "\xff\xfe", "日本\u0300", "🚀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = text.Line(s, 1000)
		for width := range 12 {
			if w := tui.Width(tui.Fit(s, width)); w != width {
				t.Errorf("Fit(%q, %d) has %d columns", s, width, w)
			}
		}
	})
}

func TestFit(t *testing.T) {
	tests := []struct {
		in          string
		width       int
		left, right string
	}{
		{"abc", 5, "abc  ", "  abc"},
		{"abcdef", 4, "abc…", "abc…"},
		{"日本語", 4, "日… ", " 日…"},
		{"abc", 0, "", ""},
		{"ab", 1, "…", "…"},
	}
	for _, tt := range tests {
		if got := tui.Fit(tt.in, tt.width); got != tt.left {
			t.Errorf("Fit(%q, %d) = %q, want %q", tt.in, tt.width, got, tt.left)
		}
		if got := tui.FitRight(tt.in, tt.width); got != tt.right {
			t.Errorf("FitRight(%q, %d) = %q, want %q", tt.in, tt.width, got, tt.right)
		}
	}
}

func TestLineFit(t *testing.T) {
	line := tui.Line{{Text: "abc", Style: tui.Bold}, {Text: "def"}, {Text: ""}}
	tests := map[int]tui.Line{
		0: {}, 1: {{Text: "…", Style: tui.Bold}}, 3: {{Text: "ab…", Style: tui.Bold}},
		4: {{Text: "abc", Style: tui.Bold}, {Text: "…"}}, 6: line, 7: line,
	}
	for width, want := range tests {
		if diff := cmp.Diff(want, line.Fit(width)); diff != "" {
			t.Errorf("width %d (-want +got):\n%s", width, diff)
		}
	}
}

func TestDecode(t *testing.T) {
	tests := []struct {
		name, in string
		keys     []tui.Key
		rest     string
	}{
		{"letters", "qé", []tui.Key{'q', 'é'}, ""},
		{"arrows", "\x1b[A\x1b[B\x1bOA\x1bOB", []tui.Key{tui.KeyUp, tui.KeyDown, tui.KeyUp, tui.KeyDown}, ""},
		{"with Ctrl", "\x1b[1;5A", []tui.Key{tui.KeyUp}, ""},
		{"pages", "\x1b[5~\x1b[6~\x1b[1~\x1b[4~\x1b[H\x1b[F", []tui.Key{tui.KeyPageUp, tui.KeyPageDown, tui.KeyHome, tui.KeyEnd, tui.KeyHome, tui.KeyEnd}, ""},
		{"escape", "\x1b", []tui.Key{tui.KeyEscape}, ""},
		{"escape, then a key", "\x1bq", []tui.Key{tui.KeyEscape, 'q'}, ""},
		{"not known", "\x1b[200~x", []tui.Key{'x'}, ""},
		{"broken by a control", "\x1b[1\x03", []tui.Key{tui.KeyInterrupt}, ""},
		{"begun", "q\x1b[1", []tui.Key{'q'}, "\x1b[1"},
		{"half a character", "a\xe2\x82", []tui.Key{'a'}, "\xe2\x82"},
		{"no character", "\xffa", []tui.Key{'a'}, ""},
		{"control", "\x03\x1a\x0c", []tui.Key{tui.KeyInterrupt, tui.KeySuspend, tui.KeyRedraw}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keys, rest := tui.Decode([]byte(tt.in))
			if diff := cmp.Diff(tt.keys, keys); diff != "" || string(rest) != tt.rest {
				t.Errorf("rest %q, want %q (-want +got):\n%s", rest, tt.rest, diff)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"\x1b[A", "\x1b[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16~", "\x1bO", "\xe2\x82", "\x1b\x1b["} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, rest := tui.Decode(b)
		if len(rest) >= 32 || len(keys) > len(b) {
			t.Errorf("%d keys, %d bytes rest of %q", len(keys), len(rest), b)
		}
	})
}
