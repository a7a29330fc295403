//go:build linux

package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/pypeer"
)

const demo = "+ bin/muster run --standalone --nproc-per-node 2 --max-restarts 1 examples/train_checkpoint.py --die-at 3"

// What `make demo` runs, and what README.md says that it prints.
func TestDemo(t *testing.T) {
	t.Parallel()
	python := pypeer.Python(t)
	p := newPlay(t, "README.md", 0)
	r := p.start(outside, demo, "PYTHON_EXEC="+python)
	// The page shows a terminal, where the values of a long line have lines of their own.
	block := regexp.MustCompile(`( \[M1052\])\n    cause: (.*)\n    restart: (.*)\n    report: (.*)`)
	r.shown = block.ReplaceAllString(r.shown, ` cause="$2" restart=$3 report=$4$1`)
	// On a busy machine rank 0 may tell of the lost connection before it is stopped.
	elsewhere := regexp.MustCompile(` on host \S+:| report=\S+| log directory \S+|(?m:^\[rank0\]: .*\n)`)
	r.shown = elsewhere.ReplaceAllString(r.shown, "")
	r.exits(0).only(elsewhere).prints(true)
}

// The lines of Python that set timers are lines of a worker's script: what they call
// is there, and nothing else is.
const surroundings = `import os

class Step(int):
    def __call__(self):
        print("a step", flush=True)

step = Step(12)
train_step = step

`

func TestTimerExamples(t *testing.T) {
	t.Parallel()
	python := pypeer.Python(t)
	for name, steps := range map[string]int{"docs/hangs.md": 2, "docs/internals/timers.md": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, name, 0)
			script := surroundings
			for _, b := range p.page.Blocks {
				if strings.Contains(b.Text, "timer.expires(") || strings.Contains(b.Text, "muster.deadline(") {
					script += b.Text
				}
			}
			p.must(os.WriteFile(filepath.Join(p.dir, "train.py"), []byte(script), 0o666))
			r := p.do(outside, "muster run train.py", "PYTHON_EXEC="+python, "TORCHELASTIC_ENABLE_FILE_TIMER=1")
			r.exits(0).says(steps, "^a step$")
		})
	}
}
