package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/muster-run/muster/internal/format/text"
)

func TestLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "loss 0.1", "loss 0.1"},
		{"colour", "\x1b[1;31mred\x1b[0m", "red"},
		{"title", "\x1b]0;owned\aok", "ok"},
		{"title with ST", "\x1b]0;owned\x1b\\ok", "ok"},
		{"broken off", "ok\x1b[3", "ok"},
		{"escape alone", "a\x1b", "a"},
		{"charset", "\x1b(Bok", "ok"},
		{"broken by a newline", "\x1b\nok", " ok"},
		{"progress bar", " 10%\r 20%\r 30%\n", " 30%"},
		{"tab and newline", "a\tb\nc", "a b c"},
		{"C1", "a\u009b31mb", "a31mb"},
		{"bidi", "a\u202eb\u2066c", "abc"},
		{"line separator", "a\u2028b", "ab"},
		{"bad UTF-8", "a\xffb", "a\ufffdb"},
		{"long progress bar", strings.Repeat("10%\r", 1<<16) + "done", "done"},
		{"too long", strings.Repeat("x", 30), strings.Repeat("x", 20) + "..."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := text.Line(tt.in, 20); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestLines(t *testing.T) {
	got := text.Lines("job \x1b]0;owned\x07a\u009b31m\r\n\tb\rc\u202e é\n")
	if want := "job a31m \n\tb c é\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"\x1b[31m", "\x1b]", "\x1bP\x1b", "a\rb", "\xff\xfe", "\x1b(", "日本\u0300"} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1000)
		got := text.Line(s, limit)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q has control characters", got)
		}
		if n := utf8.RuneCountInString(got); n > limit+1 {
			t.Errorf("%d characters, the limit is %d", n, limit)
		}
	})
}

func TestTail(t *testing.T) {
	written := []byte("lost\n  one\x1b[31m\n\n10%\rtwo\r\n \nthree")
	if got, want := text.Tail(written, 3, 4, " | "), "  on... | two | thre..."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := text.Tail([]byte(" \n"), 3, 4, "\n"); got != "" {
		t.Errorf("%q of a blank line", got)
	}
}
