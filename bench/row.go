package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Contenders, as they are called on the page.
const (
	muster   = "muster"
	torchrun = "torchrun"
	floor    = "floor"
)

// A unit says how a row's samples are written.
type unit uint8

const (
	seconds unit = iota
	size
	perSecond      // a rate: more is better
	bytesPerSecond // a rate: more is better
	secondsPerGB
	count
)

// higher reports whether more is better.
func (u unit) higher() bool { return u == perSecond || u == bytesPerSecond }

// A row is one line of the table.
type row struct {
	What     string
	Unit     unit
	Quantile float64              // which quantile of the samples is the figure; 0 is the median
	Goal     float64              // in Unit; 0 with GoalText "" is not a goal
	GoalText string               // replaces Goal on the page
	Samples  map[string][]float64 // by contender
	Note     string               // footnote
	Chart    string               // short name in the chart; "" leaves the row out
	Bar      string               // what README's bars call it; "" leaves the row out
}

func (r *row) add(contender string, v ...float64) {
	if r.Samples == nil {
		r.Samples = map[string][]float64{}
	}
	r.Samples[contender] = append(r.Samples[contender], v...)
}

// value is the row's figure for a contender, or NaN when it was not measured.
func (r *row) value(contender string) float64 {
	q := r.Quantile
	if q == 0 {
		q = 0.5
	}
	return quantile(r.Samples[contender], q)
}

// cell is the figure with its spread.
func (r *row) cell(contender string) string {
	s := r.Samples[contender]
	if len(s) == 0 {
		return "–"
	}
	text := r.Unit.format(r.value(contender))
	switch {
	case len(s) == 1:
	case r.Quantile > 0.5:
		text += fmt.Sprintf(" (max %s)", r.Unit.format(slices.Max(s)))
	default:
		text += fmt.Sprintf(" (%s–%s)", r.Unit.format(quantile(s, 0.1)), r.Unit.format(quantile(s, 0.9)))
	}
	return text
}

// ratio is how many times better a is than b: faster, smaller, cheaper.
func (r *row) ratio(a, b string) float64 {
	va, vb := r.value(a), r.value(b)
	if r.Unit.higher() {
		return va / vb
	}
	return vb / va
}

func (r *row) goal() string {
	if r.GoalText != "" {
		return r.GoalText
	}
	if r.Goal == 0 {
		return ""
	}
	return r.Unit.format(r.Goal)
}

// quantile interpolates between the two nearest samples; NaN without any.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// plain writes v for a reader who compares at a glance: seconds or megabytes, not milliseconds.
func (u unit) plain(v float64) string {
	if u == size {
		return fmt.Sprintf("%.0f MB", v/1e6)
	}
	return strconv.FormatFloat(v, 'g', 2, 64) + " s"
}

// format writes v with three significant digits and a unit to match.
func (u unit) format(v float64) string {
	switch u {
	case seconds:
		switch {
		case v == 0:
			return "0"
		case math.Abs(v) < 1e-3:
			return digits(v*1e6) + " µs"
		case math.Abs(v) < 1:
			return digits(v*1e3) + " ms"
		}
		return digits(v) + " s"
	case size:
		return digits(v/(1<<20)) + " MiB"
	case perSecond:
		switch {
		case v >= 1e6:
			return digits(v/1e6) + " M/s"
		case v >= 1e3:
			return digits(v/1e3) + " k/s"
		}
		return digits(v) + " /s"
	case bytesPerSecond:
		return digits(v/1e6) + " MB/s"
	case secondsPerGB:
		return digits(v) + " s/GB"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func digits(v float64) string {
	a := math.Abs(v)
	prec := 2
	switch {
	case a >= 100:
		prec = 0
	case a >= 10:
		prec = 1
	}
	return strconv.FormatFloat(v, 'f', prec, 64)
}

// times writes a ratio as people say it.
func times(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "–"
	}
	return strings.TrimSuffix(digits(x), ".00") + "×"
}

// reached reports whether the row's goal is met; "" where it has none.
func (r *row) reached() string {
	v := r.value(muster)
	met := false
	switch {
	case math.IsNaN(v) || r.goal() == "":
		return ""
	case r.GoalText == "0":
		met = v == 0
	case r.GoalText != "": // no slower than torchrun
		ratio := r.ratio(muster, torchrun)
		if math.IsNaN(ratio) {
			return ""
		}
		met = ratio >= 1
	case r.Unit.higher():
		met = v >= r.Goal
	default:
		met = v <= r.Goal
	}
	if met {
		return "yes"
	}
	return "no"
}
