package jobstate_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/health/jobstate"
)

// lastLines are those that a State shows of a log.
func lastLines(t *testing.T, path string) []string {
	s := jobstate.State{Workers: []jobstate.Worker{{Stdout: path}}}
	return s.Shown(nil, jobstate.Others{}).Workers[0].StdoutLines
}

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"one", "a\n", []string{"a"}},
		{"unfinished", "a\nb", []string{"a", "b"}},
		{"only the last", "a\nb\n1\n2\n3\n4\n5\n6\n7\n8\n", []string{"1", "2", "3", "4", "5", "6", "7", "8"}},
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
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, lastLines(t, path)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "gone"), t.TempDir()} {
		if lines := lastLines(t, path); lines != nil {
			t.Errorf("no file: %q", lines)
		}
	}
}

func FuzzLastLines(f *testing.F) {
	for _, text := range []string{"a\nb\n", "\x1b[1mx", "\x1b]0;", "\r\r\n", "\xff\xfe", "\x1b(\x1b)\x1b", "a\u202eb"} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		lines := lastLines(t, path)
		if len(lines) > 8 {
			t.Fatalf("%d lines, want at most 8", len(lines))
		}
		for _, line := range lines {
			if !utf8.ValidString(line) || utf8.RuneCountInString(line) > 401 || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
				t.Fatalf("line %q", line)
			}
		}
	})
}

// An answer that is not a State, or one that would take much memory, does no harm.
func TestParse(t *testing.T) {
	list := `{"version":2,"job":{"run_id":"j"},"workers":[{"rank":3,"pid":7}` + strings.Repeat(",{}", 10_000)
	if _, err := jobstate.Parse([]byte(list + "]}")); err == nil || !strings.Contains(err.Error(), "a list of more than 10000 entries") {
		t.Errorf("too many workers: %v", err)
	}
	state, err := jobstate.Parse([]byte(strings.TrimSuffix(list, ",{}") + "]}"))
	if err != nil || len(state.Workers) != 10_000 || state.Workers[0].Rank != 3 || state.Workers[0].PID != 7 || state.Job.RunID != "j" {
		t.Errorf("as many as there may be: %v", err)
	}
}

// Lists within others count, too: one worker's lines would take much more memory than their text.
func TestParseCountsAll(t *testing.T) {
	body := `{"version":2,"workers":[{"stdout_lines":[""` + strings.Repeat(`,""`, 1_400_000) + `]}]}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := jobstate.Parse([]byte(body))
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || !strings.Contains(err.Error(), "more than 100000 entries in all") || took > 16<<20 {
		t.Errorf("%v, and it took %d bytes", err, took)
	}
}
