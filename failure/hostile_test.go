package failure_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
)

const (
	heading = "Traceback (most recent call last):\n"
	frame   = "  File \"a\", line 1, in f\n"
	link    = "\nDuring handling of the above exception, another exception occurred:\n\n"
)

// hostile are units of stderr that are made to keep the agent busy.
var hostile = map[string]string{
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
	"bare":           heading + frame + "KeyError: 1\nx\ny\nz\n",
	"details":        heading + "E: x:\n" + strings.Repeat("y: error y y y\n", 190),
	"records":        `{"level":"error","message":"Traceback (most recent call last):\nE: x"}` + "\n",
	"errors":         "x ERROR y: z\n",
	"asserts":        "a: block: [, thread: [ Assertion `\n",
	"one line":       "a: block: [ CalledProcessError: Command Assertion ` ERROR gloo c10d nccl ",
	"short lines":    "abcdefg\n",
	"collectives":    "[PG 1 Rank 2] WorkNCCL(SeqNum=1, OpType=2, last enqueued work: [Rank 1]: Ranks 1,1,\n",
}

// No stderr keeps the agent busy: the time grows with the size, not its square.
func TestLiftHostile(t *testing.T) {
	for name, unit := range hostile {
		stderr := []byte(strings.Repeat(unit, 256<<10/len(unit)))
		began := time.Now()
		f := failure.New(failure.Observation{ExitCode: 1, Ended: noon, Evidence: failure.Evidence{StderrTail: stderr}})
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: %v", name, took)
		} else {
			t.Logf("%s: %v", name, took)
		}
		checkFailure(t, f)
	}
}

// The worst text takes 5 ms.
func BenchmarkHostile(b *testing.B) {
	for name, unit := range hostile {
		stderr := []byte(strings.Repeat(unit, 64<<10/len(unit)))
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				failure.New(failure.Observation{ExitCode: 1, Ended: noon, Evidence: failure.Evidence{StderrTail: stderr}})
			}
		})
	}
}
