//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// spans are what a rank does during a live change, each from an event that bench/workload/live.py
// notes to the next.
var spans = []struct{ from, to, name string }{
	{"begin", "pause", "a step that the loss breaks off"},
	{"pause", "rest", "brings back what the step has changed"},
	{"rest", "members", "at rest, until the agents have agreed on the members"},
	{"members", "group", "the process group is made anew"},
	{"group", "state", "a new rank gets the state of another"},
	{"begin", "step", "a step"},
	{"start", "rest", "a new process, forked by --warm, gets ready"},
}

// drawChange kills a worker of three under --live several times, and draws the loss that took
// the median time into a file.
func drawChange(l *lab, path string) error {
	if l.python == "" || l.musterBin == "" {
		return errNoTorch
	}
	script, err := filepath.Abs("bench/workload/live.py")
	if err != nil {
		return err
	}
	if err := l.learnLive(script); err != nil {
		return err
	}
	t, err := l.startLive(muster, []string{"--live", "--warm"}, script, nil, "BENCH_SPANS=1")
	if err != nil {
		return err
	}
	const losses = 11
	var all []liveTimes
	for range losses {
		got, err := t.drop(aWorker)
		if err != nil {
			return err
		}
		all = append(all, got)
	}
	slices.SortFunc(all, func(a, b liveTimes) int { return cmp.Compare(a.all, b.all) })
	c := change{liveTimes: all[losses/2]}
	for _, j := range t.agents {
		events, err := j.events()
		if err != nil {
			return err
		}
		c.ranks = append(c.ranks, events)
	}
	if err := t.dismiss(); err != nil {
		return err
	}
	return os.WriteFile(path, c.picture(fmt.Sprintf("three hosts, DDP over gloo, %d CPUs, PyTorch %s; the median of %d losses", runtime.NumCPU(), l.torchVersion(), losses)), 0o644)
}

// A change is the loss of the last rank's worker, with the events of all ranks.
type change struct {
	liveTimes
	ranks [][]event
}

// picture has a lane for each rank, and the time from the loss on.
func (c *change) picture(where string) []byte {
	const left, width, before, high = 64.0, 600.0, 25.0, 26.0
	length := before + c.all*1e3 + 25 // ms
	x := func(at int64) float64 {
		ms := float64(at-c.at)/1e6 + before
		return left + min(max(ms, 0), length)/length*width
	}
	var b bytes.Buffer
	begin(&b, 700, 240+24*float64(len(spans)), 13, "A worker of three is lost, and a new one joins")
	b.WriteString(palette)
	fmt.Fprintf(&b, `<text class="faint" x="16" y="44">%s</text>`+"\n", where)
	y := 62.0
	for rank, events := range c.ranks {
		fmt.Fprintf(&b, `<text class="text" x="16" y="%.0f">rank %d</text>`, y+18, rank)
		for i, e := range events[:len(events)-1] {
			next := events[i+1]
			if next.PID != e.PID || x(next.At) <= left || x(e.At) >= left+width {
				continue
			}
			for s, span := range spans {
				if e.What == span.from && next.What == span.to {
					fmt.Fprintf(&b, `<rect class="p%d" x="%.1f" y="%.0f" width="%.1f" height="%.0f"/>`, s, x(e.At), y, max(x(next.At)-x(e.At)-0.5, 0.5), high)
				}
			}
		}
		b.WriteByte('\n')
		y += 36
	}
	fmt.Fprintf(&b, `<path class="one" fill="none" stroke-dasharray="3 3" d="M%.1f 56 V%.0f"/><text class="text" x="%.1[1]f" y="%.0[3]f" text-anchor="middle">SIGKILL</text>`+"\n", x(c.at), y+2, y+18)
	for _, mark := range []struct {
		after float64
		name  string
	}{{c.next, "two go on"}, {c.all, "three go on"}} {
		fmt.Fprintf(&b, `<path class="one" fill="none" stroke-dasharray="3 3" d="M%.1f 56 V%.0f"/><text class="text" x="%.1[1]f" y="%.0[3]f" text-anchor="middle">%[4]s</text><text class="text" x="%.1[1]f" y="%.0[5]f" text-anchor="middle">%[6]s</text>`+"\n",
			x(c.at+int64(mark.after*1e9)), y+2, y+18, seconds.format(mark.after), y+34, mark.name)
	}
	y += 50
	for i, span := range spans {
		y += 24
		fmt.Fprintf(&b, `<rect class="p%d" x="16" y="%.0f" width="12" height="12"/><text class="text" x="36" y="%.0f">%s</text>`+"\n", i, y-11, y, span.name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
