package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sim runs `muster sim`, as if it took the same time always.
func sim(t *testing.T, args []string, stdout, stderr io.Writer) int {
	s := subcommand{name: "sim", usage: simUsage, do: func(_ context.Context, c *command, args []string) error {
		return simCommand(c, args, func() time.Duration { return 1234567 })
	}}
	return s.start(t.Context(), args, nil, stdout, stderr)
}

// A seed stands for one run, whose numbers do not change.
func TestSim(t *testing.T) {
	var out strings.Builder
	for _, line := range []string{
		"",
		"--nodes 8 --seed 2 --delay 1ms --loss 5",
		"--nodes 12 --min 4 --max 10 --faults 8 --skew 1m --seed 3",
		"--nodes 3 --max 2 --work 0s",
	} {
		out.WriteString("muster sim " + line + "\n")
		status := sim(t, strings.Fields(line), &out, &out)
		if status != exitOK {
			t.Errorf("%s: status %d", line, status)
		}
		out.WriteString("\n")
	}
	golden(t, "testdata/sim.txt", out.String())
}

func TestSimTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	var traces []string
	for range 2 {
		var out strings.Builder
		if status := sim(t, []string{"--nodes=4", "--faults=2", "--trace", path}, &out, &out); status != exitOK {
			t.Fatal(&out)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		traces = append(traces, string(text))
	}
	if traces[0] != traces[1] || !strings.Contains(traces[0], "holder -> n00003: round 0 rank 3/4 workers 24/32") {
		t.Errorf("the trace is %s", traces[0])
	}
}

func TestSimErrors(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []string
	}{
		{"--nodes 0 --min x --max -1 --faults 1001", []string{"--nodes cannot be '0'\nhint: give a number from 1 to 131072", "--min cannot be 'x'", "--max cannot be '-1'", "--faults cannot be '1001'"}},
		{"--loss 51 --delay 11s --work 1h --skew -1s", []string{"--loss cannot be '51'\nhint: give a number of percent", "--delay cannot be '11s'\nhint: give a time such as", "at most 10s", "--work cannot be '1h'", "--skew cannot be '-1s'"}},
		{"--loss NaN --seed -1 more", []string{"--loss cannot be 'NaN'", "--seed cannot be '-1'", "unexpected argument 'more'"}},
		{"--nodes 4 --min 5", []string{"--min 5 is more than --nodes 4"}},
		{"--min 3 --max 2", []string{"--max 2 is less than --min 3"}},
		{"--knots 3", []string{"--knots"}},
	} {
		var stdout, stderr strings.Builder
		if status := sim(t, strings.Fields(tt.line), &stdout, &stderr); status != exitUsage || stdout.Len() > 0 {
			t.Errorf("%s: status %d, %s", tt.line, status, &stdout)
		}
		for _, want := range append(tt.want, "hint: ") {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: %q is not in %s", tt.line, want, &stderr)
			}
		}
	}
}

func TestSimHelp(t *testing.T) {
	var stdout, stderr strings.Builder
	if status := sim(t, []string{"--help"}, &stdout, &stderr); status != exitOK || stderr.Len() > 0 || stdout.String() != simUsage {
		t.Errorf("status %d: %s%s", status, &stdout, &stderr)
	}
	for line := range strings.Lines(simUsage) {
		if len(line) > helpWidth+1 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}
