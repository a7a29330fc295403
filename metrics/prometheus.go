package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A scrape is Prometheus' text format of one moment: of each metric, by its name, the
// lines with its help, its type and its values. Names and helps are constants of this
// package; a test has Prometheus' own linter look at them.
// Source: "Text format details" of Prometheus' exposition formats.
type scrape map[string][]byte

// A label is one dimension of a metric. Any text is allowed as a value.
type label struct{ name, value string }

// text returns all of it, in the order of the names.
func (s scrape) text() []byte {
	text := make([]byte, 0, 8<<10)
	for _, name := range slices.Sorted(maps.Keys(s)) {
		text = append(text, s[name]...)
	}
	return text
}

// counter adds a value that only grows while the agent runs.
func (s scrape) counter(name, help string, v float64, labels ...label) {
	s.begin(name, "counter", help)
	s.sample(name, "", v, labels...)
}

// gauge adds a value that goes up and down.
func (s scrape) gauge(name, help string, v float64, labels ...label) {
	s.begin(name, "gauge", help)
	s.sample(name, "", v, labels...)
}

// histogram adds durations by their size.
func (s scrape) histogram(name, help string, h *histogram) {
	s.begin(name, "histogram", help)
	n := 0
	for i, count := range h.counts {
		le := "+Inf"
		if i < len(buckets) {
			le = string(appendNumber(nil, buckets[i]))
		}
		n += count
		s.sample(name, "_bucket", float64(n), label{"le", le})
	}
	s.sample(name, "_sum", h.sum)
	s.sample(name, "_count", float64(n))
}

// begin writes what comes before the values.
func (s scrape) begin(name, kind, help string) {
	if s[name] == nil {
		s[name] = []byte("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
	}
}

// escaper makes one line of a label's value.
var escaper = strings.NewReplacer("\n", `\n`, `\`, `\\`, `"`, `\"`)

// sample writes one value.
func (s scrape) sample(name, suffix string, v float64, labels ...label) {
	text := append(s[name], name+suffix...)
	for i, l := range labels {
		before := ","
		if i == 0 {
			before = "{"
		}
		text = append(text, before+l.name+`="`+escaper.Replace(strings.ToValidUTF8(l.value, "\uFFFD"))+`"`...)
	}
	if labels != nil {
		text = append(text, '}')
	}
	s[name] = append(appendNumber(append(text, ' '), v), '\n')
}

// appendNumber appends a number so that it is read back exactly.
func appendNumber(dst []byte, v float64) []byte {
	if v == float64(int64(v)) && v > -1e15 && v < 1e15 {
		return strconv.AppendInt(dst, int64(v), 10) // 1234567, not 1.234567e+06
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// buckets are the upper bounds of all durations, in seconds: from a millisecond, in which
// a local job starts its workers, to the ten minutes that a rendezvous may take.
var buckets = [...]float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600}

// A histogram counts durations by their size.
type histogram struct {
	counts [len(buckets) + 1]int // by bucket, the last is for what is above all bounds
	sum    float64               // seconds
}

func (h *histogram) observe(seconds float64) {
	i, _ := slices.BinarySearch(buckets[:], seconds) // a bound belongs to its bucket
	h.counts[i]++
	h.sum += seconds
}
