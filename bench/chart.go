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
	begin(&b, 900, height, 12, "How many times better than torchrun (logarithmic)")
	fmt.Fprint(&b, `<rect class="bar" x="16" y="35" width="18" height="10"/><text class="faint" x="40" y="44">muster</text>
<line class="floor" x1="100" x2="100" y1="33" y2="47"/><text class="faint" x="108" y="44">floor: the bare system calls, or a Go echo server</text>
`)
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

// bars draws torchrun and muster for each row that has a bar, in seconds and
// megabytes, each pair on a scale of its own.
func (p *page) bars() []byte {
	var b bytes.Buffer
	const left, width, line, top = 16.0, 400.0, 62.0, 58.0 // to be read on a phone
	y := top
	for _, s := range p.Sections {
		for _, r := range s.Rows {
			values := map[string]float64{torchrun: r.value(torchrun), muster: r.value(muster)}
			if r.Bar == "" || !positive(values[torchrun]) || !positive(values[muster]) {
				continue
			}
			fmt.Fprintf(&b, `<text class="text" x="%.0f" y="%.0f">%s</text>`, left, y-4, html.EscapeString(r.Bar))
			longest := max(values[torchrun], values[muster])
			for i, c := range []string{torchrun, muster} {
				long, at := max(1, width*values[c]/longest), y+float64(17*i)
				fmt.Fprintf(&b, `<rect class="%s" x="%.0f" y="%.0f" width="%.1f" height="13"/><text class="faint" x="%.1f" y="%.0f">%s %s</text>`,
					map[string]string{torchrun: "other", muster: "bar"}[c], left, at, long, left+long+6, at+12, r.Unit.plain(values[c]), c)
			}
			b.WriteByte('\n')
			y += line
		}
	}
	var svg bytes.Buffer
	begin(&svg, 560, y-20, 14, "torchrun and muster on one machine: shorter is better")
	b.WriteTo(&svg)
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// begin writes an SVG as far as its title, in the page's colours, light or dark.
func begin(b *bytes.Buffer, width, height, size float64, title string) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" viewBox="0 0 %.0f %.0f" font-family="system-ui, sans-serif" font-size="%.0f" role="img">
<title>%s</title>
<style>
.page { fill: #ffffff } .text { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 } .one { stroke: #1f2328 }
.bar { fill: #0969da } .worse { fill: #bc4c00 } .other { fill: #8c959f } .floor { stroke: #1a7f37; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .text { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #f0f6fc }
.bar { fill: #4493f8 } .worse { fill: #db6d28 } .other { fill: #6e7681 } .floor { stroke: #3fb950 }
}
</style>
<rect class="page" width="%.0f" height="%.0f"/>
<text class="text" x="16" y="24" font-size="15" font-weight="600">%s</text>
`, width, width, height, size, title, width, height, title)
}

func positive(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
