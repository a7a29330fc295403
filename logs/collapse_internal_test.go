//go:build linux

package logs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// collapsed copies what texts hold, by local rank, with a delay that never ends.
func collapsed(t *testing.T, texts ...string) (string, Stats) {
	t.Helper()
	cfg := tailConfig{
		files: map[int]string{}, prefixes: map[int]string{}, collapse: time.Hour,
		collapsedPrefix: func(ranks []int) string { return strings.Trim(fmt.Sprint(ranks), "[]") + ":" },
	}
	dir := t.TempDir()
	for i, text := range texts {
		cfg.files[i], cfg.prefixes[i] = filepath.Join(dir, strconv.Itoa(i)), strconv.Itoa(i)+":"
		if err := os.WriteFile(cfg.files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return startTail(t, cfg).stop()
}

func TestCollapse(t *testing.T) {
	long := strings.Repeat("x", 5000) + "\n"
	for _, tt := range []struct {
		name  string
		texts []string
		want  string
	}{
		{"all", []string{"a\n", "a\n", "a\n"}, "0 1 2:a\n"},
		{"some", []string{"a\n", "b\n", "a\n"}, "0 2:a\n1:b\n"},
		{"sequence", []string{"a\nb\nc\n", "a\nb\nc\n"}, "0 1:a\n0 1:b\n0 1:c\n"},
		{"numbers differ", []string{"loss 1.5\n", "loss 1.6\n"}, "0:loss 1.5\n1:loss 1.6\n"},
		{"space differs", []string{"a\n", "a \n"}, "0:a\n1:a \n"},
		{"twice by one", []string{"a\na\na\n", "a\na\n"}, "0 1:a\n0 1:a\n0:a\n"},
		{"one line more", []string{"a\nb\n", "a\nx\nb\n"}, "0 1:a\n1:x\n0 1:b\n"},
		{"own lines first", []string{"loss 0\nsaving\n", "loss 1\nsaving\n", "loss 2\nsaving\n"}, "0:loss 0\n1:loss 1\n2:loss 2\n0 1 2:saving\n"},
		{"own lines between", []string{"a\nx\nb\nx\nc\n", "a\ny\nb\nz\ny\nc\n"}, "0 1:a\n0:x\n1:y\n0 1:b\n0:x\n1:z\n1:y\n0 1:c\n"},
		{"order of each", []string{"a\nb\n", "b\na\n"}, "0:a\n0 1:b\n1:a\n"},
		{"empty lines", []string{"\n\n", "\n\n"}, "0 1:\n0 1:\n"},
		{"progress bars", []string{"a\n1%\r2%\nb\n", "a\n1%\r2%\nb\n"},
			"0:a\n0:1%\r0:2%\n0:b\n1:a\n1:1%\r1:2%\n1:b\n"},
		{"unfinished", []string{"a\nb", "a\nb"}, "0 1:a\n0:b\n1:b\n"},
		{"long lines", []string{"a\n" + long + "b\n", "a\n" + long + "b\n"}, "0:a\n0:" + long + "0:b\n1:a\n1:" + long + "1:b\n"},
		{"alone", []string{"a\n"}, "0:a\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, stats := collapsed(t, tt.texts...)
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if stats.LostBytes != 0 {
				t.Errorf("got %+v", stats)
			}
		})
	}
}

// A line that the other rank does not write comes after the delay, and one that
// all have written at once.
func TestCollapseWaits(t *testing.T) {
	dir := t.TempDir()
	files := map[int]string{0: filepath.Join(dir, "0"), 1: filepath.Join(dir, "1")}
	const delay = 50 * time.Millisecond
	cfg := tailConfig{files: files, prefixes: map[int]string{0: "0:", 1: "1:"}, collapse: delay}
	start := time.Now()
	d := startTail(t, cfg)
	appendTo(t, files[0], "alone\n")
	d.expect("0:alone\n")
	if waited := time.Since(start); waited < delay {
		t.Errorf("a line of one rank came after %v", waited)
	}
	d.stop()

	for _, path := range files {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	cfg.collapse = time.Hour // or the other rank's line could come after the delay
	d = startTail(t, cfg)
	appendTo(t, files[0], "both\n")
	appendTo(t, files[1], "both\n")
	d.expect("0:1:both\n")
	appendTo(t, files[0], "left\n")
	if rest, stats := d.stop(); rest != "0:left\n" || stats.LostBytes != 0 {
		t.Errorf("got %q, %+v", rest, stats)
	}
}

// What waits is bounded: of a rank alone, no line waits for ever.
func TestCollapseIsBounded(t *testing.T) {
	const lines = 200_000
	dir := t.TempDir()
	path := filepath.Join(dir, "0")
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "line %d of this rank alone\n", i%1000)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startTail(t, tailConfig{files: map[int]string{0: path, 1: filepath.Join(dir, "none")}, collapse: time.Hour})
	d.expect(text.String()[:text.Len()/2]) // before Stop
	rest, stats := d.stop()
	if diff := cmp.Diff(text.Len()/2, len(rest)); diff != "" || stats.LostBytes != 0 {
		t.Errorf("%s%+v", diff, stats)
	}
}

func TestCollapseStuckConsole(t *testing.T) {
	dir := t.TempDir()
	cfg := tailConfig{files: map[int]string{}, collapse: time.Hour}
	for i := range 2 {
		cfg.files[i] = filepath.Join(dir, strconv.Itoa(i))
		appendTo(t, cfg.files[i], "a line\n")
	}
	d := startTail(t, cfg) // nobody reads
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stats, err := d.end(ctx)
	if err == nil || stats.LostBytes == 0 {
		t.Errorf("got %+v, %v", stats, err)
	}
	d.out.Close()
}
