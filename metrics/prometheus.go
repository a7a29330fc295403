package metrics

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ContentType is what WritePrometheus writes, for HTTP.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Collect takes the values of one scrape from the callbacks of OnCollect. A
// series that has been added before, or whose name is that of another kind of
// metric, is left out: a scrape must not fail as a whole. So is one with a bad
// name. A Collect is used by one goroutine.
type Collect struct {
	families map[string]*family
}

// Counter adds a value that only grows while the agent runs.
func (c *Collect) Counter(name, help string, v float64, labels ...Label) {
	c.add(name, help, KindCounter, v, labels)
}

// Gauge adds a value.
func (c *Collect) Gauge(name, help string, v float64, labels ...Label) {
	c.add(name, help, KindGauge, v, labels)
}

func (c *Collect) add(name, help string, kind Kind, v float64, labels []Label) {
	f := c.families[name]
	if checkNames(name, help, labels) != nil || f != nil && f.kind != kind {
		return
	}
	if f == nil {
		f = &family{name: name, help: help, kind: kind}
		c.families[name] = f
	}
	printed := printLabels(labels)
	if slices.ContainsFunc(f.series, func(s series) bool { return s.labels == printed }) {
		return
	}
	f.series = append(f.series, series{printed, sample(v)})
}

// A sample is a value that was read once.
type sample float64

func (s sample) appendTo(dst []byte, name, labels string) []byte {
	return appendSample(dst, name, "", labels, float64(s))
}

// WritePrometheus writes all metrics in Prometheus' text format 0.0.4, with one
// Write, in the order of their names. It calls the callbacks first. The error is
// w's.
func (r *Registry) WritePrometheus(w io.Writer) error {
	r.mu.Lock()
	c := Collect{families: make(map[string]*family, len(r.families)+16)}
	for name, f := range r.families {
		// The series are clipped, so that a callback's do not end up in the registry.
		c.families[name] = &family{f.name, f.help, f.kind, slices.Clip(f.series)}
	}
	callbacks := slices.Clip(r.callbacks)
	r.mu.Unlock()
	for _, f := range callbacks {
		f(&c)
	}
	text := make([]byte, 0, 8<<10)
	for _, name := range slices.Sorted(maps.Keys(c.families)) {
		text = c.families[name].appendTo(text)
	}
	_, err := w.Write(text)
	return err
}

func (f *family) appendTo(dst []byte) []byte {
	dst = append(dst, "# HELP "...)
	dst = append(dst, f.name...)
	dst = append(dst, ' ')
	dst = appendEscaped(dst, f.help, false)
	dst = append(dst, "\n# TYPE "...)
	dst = append(dst, f.name...)
	dst = append(dst, ' ')
	dst = append(dst, f.kind...)
	dst = append(dst, '\n')
	for _, s := range f.series {
		dst = s.metric.appendTo(dst, f.name, s.labels)
	}
	return dst
}

// appendSample appends one line.
func appendSample(dst []byte, name, suffix, labels string, v float64) []byte {
	dst = append(dst, name...)
	dst = append(dst, suffix...)
	if labels != "" {
		dst = append(dst, '{')
		dst = append(dst, labels...)
		dst = append(dst, '}')
	}
	dst = append(dst, ' ')
	dst = appendNumber(dst, v)
	return append(dst, '\n')
}

// appendNumber appends a number so that it is read back exactly; NaN and ±Inf
// are spelt so in the format, too.
func appendNumber(dst []byte, v float64) []byte {
	if v == float64(int64(v)) && v > -1e15 && v < 1e15 {
		return strconv.AppendInt(dst, int64(v), 10) // 1234567, not 1.234567e+06
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// printLabels prints labels as name="value",name="value".
func printLabels(labels []Label) string {
	if len(labels) == 0 {
		return ""
	}
	var b []byte
	for i, l := range labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, l.Name...)
		b = append(b, '=', '"')
		b = appendEscaped(b, l.Value, true)
		b = append(b, '"')
	}
	return string(b)
}

// appendEscaped appends text as UTF-8 in one line; bytes that are not UTF-8
// become U+FFFD. Quotes are escaped in the values of labels only.
func appendEscaped(dst []byte, s string, quotes bool) []byte {
	for _, c := range []byte(strings.ToValidUTF8(s, "\uFFFD")) {
		switch {
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\\':
			dst = append(dst, `\\`...)
		case c == '"' && quotes:
			dst = append(dst, `\"`...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
