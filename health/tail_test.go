package health_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health"
)

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"one", "a\n", []string{"a"}},
		{"unfinished", "a\nb", []string{"a", "b"}},
		{"only the last", "a\nb\nc\nd\n", []string{"b", "c", "d"}},
		{"blank lines count", "a\n\n\n", []string{"a", "", ""}},
		{"windows line ends", "a\r\nb\r\n", []string{"a", "b"}},
		{"progress bar", " 10%|#\r 50%|###\r100%|#####\ndone\n", []string{"100%|#####", "done"}},
		{"progress bar under way", " 10%\r 50%\r", []string{" 50%"}},
		{"colours", "\x1b[1;31mred\x1b[0m text\n", []string{"red text"}},
		{"title", "\x1b]0;title\x07text\n\x1b]8;;http://x\x1b\\link\n", []string{"text", "link"}},
		{"charset", "\x1b(Btext\x1b=\n", []string{"text"}},
		{"broken off", "text\x1b", []string{"text"}},
		{"broken sequence", "a\x1b[12\x01b\n", []string{"ab"}},
		{"tab", "a\tb\n", []string{"a b"}},
		{"control characters", "a\x00\x08\x7fb\u0085c\n", []string{"abc"}},
		{"direction", "a\u202eb\u2066c\n", []string{"abc"}},
		{"not UTF-8", "a\xffb\n", []string{"a\ufffdb"}},
		{"long", strings.Repeat("ä", 1000) + "\n", []string{strings.Repeat("ä", 400) + "..."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := health.EndOf(write(t, "log", tt.text), 3)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := health.EndOf(filepath.Join(t.TempDir(), "gone"), 3); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := health.EndOf(t.TempDir(), 3); err == nil {
		t.Error("a directory: no error")
	}
}

func FuzzLastLines(f *testing.F) {
	for _, text := range []string{"a\nb\n", "\x1b[1mx", "\x1b]0;", "\r\r\n", "\xff\xfe", "\x1b(\x1b)\x1b", "a\u202eb"} {
		f.Add([]byte(text), uint8(3))
	}
	f.Add([]byte("a\n"), uint8(0))
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		lines, err := health.EndOf(path, int(n))
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) > int(n) {
			t.Fatalf("%d lines, want at most %d", len(lines), n)
		}
		for _, line := range lines {
			if !utf8.ValidString(line) || utf8.RuneCountInString(line) > 401 || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
				t.Fatalf("line %q", line)
			}
		}
	})
}
