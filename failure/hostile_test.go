package failure_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
)

// No stderr keeps the agent busy: the time grows with the size, not its square.
func TestLiftHostile(t *testing.T) {
	const heading = "Traceback (most recent call last):\n"
	frame := "  File \"a\", line 1, in f\n"
	link := "\nDuring handling of the above exception, another exception occurred:\n\n"
	for name, unit := range map[string]string{
		"headings":       heading,
		"originals":      heading + frame + "E: x\nOriginal " + heading + frame,
		"nested":         heading + frame + "E: x\nOriginal ",
		"chains":         heading + frame + "E: x\n" + link,
		"frames":         frame,
		"frames and end": frame + "E: x\n",
		"noise":          heading + frame + "noise\n",
		"groups":         "  + Exception Group " + heading + "  | E: x\n",
		"fatal":          "Fatal Python error: x\n\nCurrent thread 0x1\n",
		"panics":         "panic: x\n",
		"dumps":          "panic: x\ngoroutine 1 [\n",
		"terminate":      "terminate called after throwing an instance of 'x'\n  what():  y\n",
		"ranks":          "[rank0]: " + heading + "x\n\n",
		"escapes":        "\x1b[\x1b]\x1bP\x1b",
		"carriage":       "\r",
		"blank":          "\n",
		"spaces":         " ",
		"margins":        "a" + heading + "a  File \"\n",
	} {
		stderr := []byte(strings.Repeat(unit, 256<<10/len(unit)))
		began := time.Now()
		f := failure.New(failure.Observation{ExitCode: 1, Ended: noon, StderrTail: stderr})
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: %v", name, took)
		} else {
			t.Logf("%s: %v", name, took)
		}
		checkFailure(t, f)
	}
}
