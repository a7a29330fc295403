//go:build linux

package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// chart draws, for each row that has a short name, how many times better than
// torchrun muster (bar) and the floor (tick) are, on a logarithmic axis.
func (p *page) chart() []byte {
	var rows []*row
	low, high := 0.5, 2.0
	for _, s := range p.Sections {
		for _, r := range s.Rows {
			if r.Chart == "" || !positive(r.ratio(muster, torchrun)) {
				continue
			}
			rows = append(rows, r)
			for _, c := range []string{muster, floor} {
				if x := r.ratio(c, torchrun); positive(x) {
					low, high = min(low, x/1.2), max(high, x*1.2)
				}
			}
		}
	}
	const left, width, line, top = 250.0, 560.0, 24.0, 64.0
	height := top + line*float64(len(rows)) + 34
	x := func(v float64) float64 {
		return left + width*(math.Log10(v)-math.Log10(low))/(math.Log10(high)-math.Log10(low))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 %.0f" font-family="system-ui, sans-serif" font-size="12" role="img">
<title>How many times better than torchrun</title>
<style>
.page { fill: #ffffff } .text { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 } .one { stroke: #1f2328 }
.bar { fill: #0969da } .worse { fill: #bc4c00 } .floor { stroke: #1a7f37; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .text { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #f0f6fc }
.bar { fill: #4493f8 } .worse { fill: #db6d28 } .floor { stroke: #3fb950 }
}
</style>
<rect class="page" width="900" height="%.0f"/>
<text class="text" x="16" y="24" font-size="15" font-weight="600">How many times better than torchrun (logarithmic)</text>
<rect class="bar" x="16" y="35" width="18" height="10"/><text class="faint" x="40" y="44">muster</text>
<line class="floor" x1="100" x2="100" y1="33" y2="47"/><text class="faint" x="108" y="44">floor: the bare system calls, or a Go echo server</text>
`, height, height)
	for e := math.Ceil(math.Log10(low)); e <= math.Log10(high); e++ {
		v := math.Pow(10, e)
		class := "grid"
		if e == 0 {
			class = "one"
		}
		fmt.Fprintf(&b, `<line class="%s" x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f"/><text class="faint" x="%.1f" y="%.0f" text-anchor="middle">%g×</text>`+"\n",
			class, x(v), x(v), top-6, height-26, x(v), height-10, v)
	}
	for i, r := range rows {
		y := top + line*float64(i)
		ratio := r.ratio(muster, torchrun)
		from, to := x(1), x(ratio)
		class := "bar"
		if ratio < 1 {
			from, to, class = to, from, "worse"
		}
		fmt.Fprintf(&b, `<text class="text" x="%.0f" y="%.0f" text-anchor="end">%s</text><rect class="%s" x="%.1f" y="%.0f" width="%.1f" height="14"/>`,
			left-10, y+11, html.EscapeString(strings.ReplaceAll(r.Chart, "`", "")), class, from, y, max(to-from, 1))
		if f := r.ratio(floor, torchrun); positive(f) {
			fmt.Fprintf(&b, `<line class="floor" x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f"/>`, x(f), x(f), y-2, y+16)
		}
		fmt.Fprintf(&b, `<text class="text" x="895" y="%.0f" text-anchor="end">%s</text>`+"\n", y+11, times(ratio))
	}
	fmt.Fprint(&b, "</svg>\n")
	return b.Bytes()
}

func positive(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
