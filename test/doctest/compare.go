package doctest

import (
	"fmt"
	"regexp"
	"strings"
)

// Compare says how what a command has printed differs from what a page shows. In a
// page a line of "…" stands for any lines, also for none, and "…" within a line for any text.
// Of what is different each time any is like another of its kind: see kinds. Lines
// have to come in order, unless loose, where each line of the page needs one of the
// command's, in whatever order.
func Compare(page, printed string, loose bool) error {
	var want []*regexp.Regexp
	lines := strings.Split(strings.Trim(page, "\n"), "\n")
	for _, line := range lines {
		want = append(want, pattern(line))
	}
	got := strings.Split(strings.TrimRight(printed, "\n"), "\n")
	if loose {
		return unordered(lines, want, got)
	}
	// longest is how far the page is matched by the command's lines, in the best case.
	longest, after := 0, 0
	var fits func(w, g int) bool
	tried := map[[2]int]bool{}
	fits = func(w, g int) bool {
		if w > longest {
			longest, after = w, g
		}
		if w == len(want) {
			return g == len(got)
		}
		if at := [2]int{w, g}; tried[at] {
			return false
		} else {
			tried[at] = true
		}
		if want[w] == nil {
			return fits(w+1, g) || g < len(got) && fits(w, g+1)
		}
		return g < len(got) && want[w].MatchString(mask(got[g])) && fits(w+1, g+1)
	}
	if fits(0, 0) {
		return nil
	}
	next, here := "nothing more", "the end"
	if longest < len(lines) {
		next = fmt.Sprintf("%q", lines[longest])
	}
	if after < len(got) {
		here = fmt.Sprintf("%q", got[after])
	}
	return fmt.Errorf("line %d of the output on the page is %s, the command printed %s", longest+1, next, here)
}

func unordered(lines []string, want []*regexp.Regexp, got []string) error {
	used := make([]bool, len(got))
	open := false
	for w := range want {
		if want[w] == nil {
			open = true
			continue
		}
		found := false
		for g := range got {
			if found = !used[g] && want[w].MatchString(mask(got[g])); found {
				used[g] = true
				break
			}
		}
		if !found {
			return fmt.Errorf("the command did not print %q", lines[w])
		}
	}
	for g := range got {
		if !open && !used[g] {
			return fmt.Errorf("the command also printed %q", got[g])
		}
	}
	return nil
}

// kinds are what is different each time, and what stands for it.
var kinds = []struct {
	of *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{4}…`), "<id>"},
	{regexp.MustCompile(`(/logs/[\w.<>-]+)_\w{8}\b`), "${1}_<random>"},
	{regexp.MustCompile(`([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ `), "$1<time> "},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?`), "<time>"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d`), "<time>"},
	{regexp.MustCompile(`\b(\d+ min )?\d+(\.\d+)? (ms|s)\b`), "<span>"},
	{regexp.MustCompile(`\b(\d+d)?\d+h\d+m\b`), "<span>"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ns|[µu]s|ms|s)\b`), "<span>"},
	{regexp.MustCompile(`\b\d+[hm] ago`), "<span> ago"},
	// A worker's pid, share of the CPU, memory, step, and how long ago it was heard of.
	{regexp.MustCompile(`^( +\d+( +host\d+)?) +\d+ +(HEALTHY) +\d+ `), "$1 <pid> $3 <cpu> "},
	{regexp.MustCompile(`(\bloss \d+\.\d{3})\d+`), "$1"},
	{regexp.MustCompile(`\b\d+(\.\d+)? (B|[KMGT]iB)\b`), "<bytes>"},
	{regexp.MustCompile(`\b(pid|PID)(:?) \d+`), "$1$2 <pid>"},
	{regexp.MustCompile(`/[^ ]*/logs/`), "<dir>/logs/"},
}

// mask puts names into the place of what is different each time. Columns may be
// wider or narrower for it.
func mask(line string) string {
	for _, k := range kinds {
		line = k.of.ReplaceAllString(line, k.as)
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	return line[:indent] + strings.Join(strings.Fields(line), " ")
}

// pattern is a line of a page as a regular expression of a masked line, nil for "…".
func pattern(line string) *regexp.Regexp {
	if strings.TrimSpace(line) == "…" {
		return nil
	}
	parts := strings.Split(mask(line), "…")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
}
