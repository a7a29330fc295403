//go:build linux

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// phases of a restart, in their order. A fork is part of the second, and has no third.
var phases = []string{
	"the death is noticed",
	"the other worker is stopped, both are started",
	"the interpreter starts",
	"import torch",
	"the other imports, most of them by DDP()",
	"the workers meet: init_process_group()",
	"DDP(), forward, backward, optimizer",
}

// drawRestart restarts a job cold and warm, and draws into a file where the time goes.
func drawRestart(l *lab, path string) error {
	if l.python == "" || l.musterBin == "" {
		return errNoTorch
	}
	w := &warmLab{lab: l, dir: filepath.Join(l.dir, "warm")}
	// The interpreter of cold workers notes when it is started.
	python := filepath.Join(l.dir, "python-exec")
	if err := os.WriteFile(python, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' exec '%s' \"$@\"\n", l.worker, l.python), 0o755); err != nil {
		return err
	}
	if _, err := w.train(muster, 2, 0); err != nil { // learns
		return err
	}
	times := map[string][]float64{}
	for c, env := range map[string][]string{cold: {"PYTHON_EXEC=" + python}, muster: nil} {
		const restarts = 5
		t, err := w.train(c, 2, restarts, env...)
		if err != nil {
			return err
		}
		var all [][]float64
		for i := range restarts {
			all = append(all, t.phases(i))
		}
		slices.SortFunc(all, func(a, b []float64) int { return cmp.Compare(sum(a), sum(b)) })
		times[c] = all[restarts/2]
	}
	return os.WriteFile(path, restartPicture(times[cold], times[muster], fmt.Sprintf("two workers, DDP over gloo, %d CPUs, PyTorch %s", runtime.NumCPU(), l.torchVersion())), 0o644)
}

var errNoTorch = errors.New("it needs muster and torch")

func (l *lab) torchVersion() string {
	return output(l.python, "-c", "import torch; print(torch.__version__)")
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// phases of rank 0's restart after an attempt, in seconds.
func (t *training) phases(attempt int) []float64 {
	death, term := t.of("death", attempt), t.of("term", attempt)
	exec, start := t.of("exec", attempt+1), t.of("start", attempt+1)
	torch, group, step := t.of("torch", attempt+1), t.of("group", attempt+1), t.of("step", attempt+1)
	if exec.At == 0 {
		exec = start
	}
	ns := []int64{
		term.At - death.At, exec.At - term.At, start.At - exec.At, torch.At - start.At, step.Additional,
		group.At - torch.At - group.Additional, step.At - group.At - (step.Additional - group.Additional),
	}
	var all []float64
	for _, n := range ns {
		all = append(all, float64(n)/1e9)
	}
	return all
}

// palette has a colour for each part of a time.
const palette = `<style>
.p0 { fill: #cf222e } .p1 { fill: #bf8700 } .p2 { fill: #8250df } .p3 { fill: #0969da } .p4 { fill: #54aeff } .p5 { fill: #1a7f37 } .p6 { fill: #8c959f }
@media (prefers-color-scheme: dark) {
.p0 { fill: #f85149 } .p1 { fill: #d29922 } .p2 { fill: #a371f7 } .p3 { fill: #1f6feb } .p4 { fill: #79c0ff } .p5 { fill: #3fb950 } .p6 { fill: #6e7681 }
}
</style>
`

// restartPicture shows both restarts on one scale, the warm one on its own too, and the numbers.
func restartPicture(cold, warm []float64, where string) []byte {
	const left, width, high = 64.0, 560.0, 26.0
	var b bytes.Buffer
	begin(&b, 700, 250+24*float64(len(phases)), 13, "From a worker's death to the first step of the restarted job")
	b.WriteString(palette)
	fmt.Fprintf(&b, `<text class="faint" x="16" y="44">%s</text>`+"\n", where)
	bar := func(name string, y, scale float64, times []float64) {
		fmt.Fprintf(&b, `<text class="text" x="16" y="%.0f">%s</text>`, y+18, name)
		x := left
		for i, t := range times {
			fmt.Fprintf(&b, `<rect class="p%d" x="%.1f" y="%.0f" width="%.1f" height="%.0f"/>`, i, x, y, t*scale, high)
			x += t * scale
		}
		fmt.Fprintf(&b, `<text class="text" x="%.1f" y="%.0f">%s</text>`+"\n", x+8, y+18, seconds.format(sum(times)))
	}
	scale, close := width/sum(cold), width/sum(warm)
	bar("cold", 62, scale, cold)
	bar("warm", 102, scale, warm)
	fmt.Fprintf(&b, `<path class="grid" fill="none" d="M%.1f 128 V152 M%.1f 128 L%.1f 152"/>`+"\n", left, left+sum(warm)*scale, left+width)
	bar(fmt.Sprintf("× %.0f", math.Round(close/scale)), 152, close, warm)
	y := 212.0
	fmt.Fprintf(&b, `<text class="faint" x="500" y="%.0f" text-anchor="end">cold</text><text class="faint" x="620" y="%[1]f" text-anchor="end">warm</text>`+"\n", y)
	for i, name := range phases {
		y += 24
		cells := []string{seconds.format(cold[i]), seconds.format(warm[i])}
		if warm[i] == 0 {
			cells[1] = "–"
		}
		fmt.Fprintf(&b, `<rect class="p%d" x="16" y="%.0f" width="12" height="12"/><text class="text" x="36" y="%.0f">%s</text>`, i, y-11, y, name)
		fmt.Fprintf(&b, `<text class="text" x="500" y="%.0f" text-anchor="end">%s</text><text class="text" x="620" y="%[1]f" text-anchor="end">%[3]s</text>`+"\n", y, cells[0], cells[1])
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
