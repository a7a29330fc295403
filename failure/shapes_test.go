package failure_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
)

// readShape reads an example: what the ranks of a job print, how they end, and what a person wants to read.
func readShape(t *testing.T, name string) (want, hint string, ranks []failure.Observation) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", "shapes", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	source := ""
	parts := strings.Split("\n"+string(body), "\n=== ")
	for line := range strings.Lines(parts[0]) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "source":
			source = value
		case "want":
			want = value
		case "hint":
			hint = value
		}
	}
	if source == "" || want == "" || hint == "" {
		t.Errorf("%s has no source, want or hint", name)
	}
	return want, hint, readRanks(parts[1:])
}

func readRanks(parts []string) (ranks []failure.Observation) {
	for i, part := range parts {
		head, text, _ := strings.Cut(part, "\n")
		o := failure.Observation{Ended: noon.Add(time.Duration(i) * time.Millisecond), Evidence: failure.Evidence{StderrTail: []byte(text)}}
		if n, _ := fmt.Sscanf(head, "rank %d exit %d", &o.Rank, &o.ExitCode); n == 1 {
			o.ExitCode, o.StoppedBy = -15, 15
		}
		if strings.HasSuffix(head, " stdout") {
			o.StderrTail, o.StdoutTail = nil, o.StderrTail
		}
		ranks = append(ranks, o)
	}
	return ranks
}

// Texts after public reports name the rank and the cause.
func TestReports(t *testing.T) {
	files, err := filepath.Glob("testdata/reports/*.txt")
	if err != nil || len(files) != 100 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		checkRoot(t, file, 0)
	}
}

// So do jobs of real programs on two and three hosts, which talked over gloo: what their workers printed, on hosts,
// addresses and paths of other names, in the order in which they ended.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/recorded/*.txt")
	if err != nil || len(files) != 14 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		workers := 3
		if strings.HasSuffix(file, "sys-exit.txt") {
			workers = 2
		}
		checkRoot(t, file, workers)
	}
}

// checkRoot checks what is made of the failures in a file, of a job with so many workers.
func checkRoot(t *testing.T, file string, workers int) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split("\n"+string(body), "\n=== ")
	var all []*failure.ProcessFailure
	for _, o := range readRanks(parts[1:]) {
		o.Workers = workers
		all = append(all, failure.New(o))
		checkFailure(t, all[len(all)-1])
	}
	root := failure.NewReport(failure.ReportConfig{}, all).Root()
	for line := range strings.Lines(parts[0]) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		says := func(part string) bool {
			return strings.Contains(fmt.Sprintf("rank %d: %s", root.Rank, root.Cause), part)
		}
		if key == "rank" && value != fmt.Sprint(root.Rank) ||
			key == "needs" && !slices.ContainsFunc(strings.Split(value, " || "), says) {
			t.Errorf("%s: rank %d: %s; want %s %s", file, root.Rank, root.Cause, key, value)
		}
	}
}

// Each example is read as a person would.
func TestShapes(t *testing.T) {
	files, err := filepath.Glob("testdata/shapes/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			want, hint, ranks := readShape(t, name)
			var all []*failure.ProcessFailure
			for _, o := range ranks {
				all = append(all, failure.New(o))
				checkFailure(t, all[len(all)-1])
			}
			root := failure.NewReport(failure.ReportConfig{}, all).Root()
			if got := fmt.Sprintf("rank %d: %s", root.Rank, root.Cause); got != want && !strings.HasPrefix(got, want+" ") {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
			if (root.Hint == "") != (hint == "-") || hint != "-" && !strings.Contains(root.Hint, hint) {
				t.Errorf("hint %q, want %q", root.Hint, hint)
			}
		})
	}
}

// What workers have survived explains neither a signal from outside nor that they were stopped, nor does it make
// another rank fail: each text alone, and with those of other programs around it, some 1,500 logs.
func TestShapesSurvived(t *testing.T) {
	shapes, _ := filepath.Glob("testdata/shapes/*.txt")
	reports, _ := filepath.Glob("testdata/re[pc]o*/*.txt")
	var texts []string
	for _, file := range append(shapes, reports...) {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, text, _ := strings.Cut(string(body), "\n=== "); !strings.Contains(text, "\npanic: ") { // which has all that comes after it
			for _, o := range readRanks(strings.Split("\n=== "+text, "\n=== ")[1:]) {
				texts = append(texts, string(o.StderrTail)+string(o.StdoutTail))
			}
		}
	}
	logs := 0
	for i, text := range texts {
		for _, around := range []int{0, 1, 7} {
			other := texts[(i+around)%len(texts)]
			if around == 0 {
				other = ""
			}
			logs += 2
			o := failure.Observation{Rank: 77, Ended: noon, Evidence: failure.Evidence{StderrTail: []byte(other + text + "\n\n\nstep 8\n")}, ExitCode: -9}
			if f := failure.New(o); f.Cause != "killed by SIGKILL" || f.Kind != failure.Failed {
				t.Errorf("text %d and %d, killed: %s: %s\n%s", i, around, f.Kind, f.Cause, o.StderrTail)
			}
			o.ExitCode, o.StoppedBy = -15, 15
			stopped := failure.New(o)
			if stopped.Cause != "stopped with SIGTERM" {
				t.Errorf("text %d and %d, stopped: %s", i, around, stopped.Cause)
			}
			own := failure.New(failure.Observation{ExitCode: 3, Rank: 1, Ended: noon})
			if root := failure.NewReport(failure.ReportConfig{}, []*failure.ProcessFailure{stopped, own}).Root(); root.Rank != 1 {
				t.Errorf("text %d and %d: rank %d is blamed: %s", i, around, root.Rank, root.Cause)
			}
		}
	}
	if t.Logf("%d logs", logs); logs < 1000 {
		t.Errorf("only %d logs", logs)
	}
}

// Each row has an example, which has a line of that shape.
func TestShapeRows(t *testing.T) {
	for _, row := range failure.ShapeRows() {
		_, _, ranks := readShape(t, row.Name)
		found := false
		for _, o := range ranks {
			for line := range strings.Lines(string(o.StderrTail) + failure.New(o).Cause) {
				line = strings.TrimRight(line, "\n")
				found = found || row.Match(line) || row.Match(strings.TrimSpace(line)) || row.Match(strings.ToLower(line))
				if i := strings.Index(line, "]: "); i > 0 {
					found = found || row.Match(line[i+3:])
				} else if i := strings.Index(line, ") "); i > 0 {
					found = found || row.Match(line[i+2:])
				}
			}
		}
		if !found {
			t.Errorf("%s: no example of %q", row.Name, row.Line)
		}
	}
}

// Each role that the code asks for has shapes.
func TestShapeRoles(t *testing.T) {
	for _, r := range failure.Roles {
		if !failure.HasShapes(r) {
			t.Errorf("no shape of role %q", r)
		}
	}
}
