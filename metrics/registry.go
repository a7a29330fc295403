package metrics

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Kind is the type of a metric, spelt as in the text format.
type Kind string

// The kinds of metrics.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// A Label is one dimension of a metric. Any text is allowed as a value.
type Label struct{ Name, Value string }

// A Registry holds metrics for Prometheus: counters, gauges and histograms that
// are kept up to date, and callbacks for what is cheaper to read when somebody
// looks. Make it with NewRegistry. All methods may be called concurrently.
//
// Counter, Gauge and Histogram return the metric of that name and those labels,
// a new one the first time. Names, kinds, help and the names of labels are the
// program's own and constant; a name that is not well formed, or is used for two
// kinds, panics.
type Registry struct {
	mu        sync.Mutex // guards families and callbacks, not the values in them
	families  map[string]*family
	callbacks []func(*Collect)
}

// A family is all that has one name.
type family struct {
	name, help string
	kind       Kind
	series     []series
}

// A series is one set of labels of a family.
type series struct {
	labels string // as they are printed, without braces
	metric metric
}

// A metric has a value. *Counter, *Gauge, *Histogram and sample are metrics.
type metric interface {
	appendTo(dst []byte, name, labels string) []byte
}

// NewRegistry returns a registry without metrics.
func NewRegistry() *Registry { return &Registry{families: map[string]*family{}} }

// OnCollect registers f to be called by each WritePrometheus, while no lock is
// held, perhaps by several goroutines at once. What f adds belongs to that call.
func (r *Registry) OnCollect(f func(*Collect)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callbacks = append(r.callbacks, f)
}

// Counter returns a counter. Its name ends in "_total".
func (r *Registry) Counter(name, help string, labels ...Label) *Counter {
	m, _ := r.get(name, help, KindCounter, labels, func() metric { return &Counter{} }).(*Counter)
	return m
}

// Gauge returns a gauge, whose value is 0 until it is set.
func (r *Registry) Gauge(name, help string, labels ...Label) *Gauge {
	m, _ := r.get(name, help, KindGauge, labels, func() metric { return &Gauge{} }).(*Gauge)
	return m
}

// Histogram returns a histogram with the given upper bounds of its buckets, in
// ascending order; the bucket for all that is larger need not be named.
func (r *Registry) Histogram(name, help string, bounds []float64, labels ...Label) *Histogram {
	m, _ := r.get(name, help, KindHistogram, labels, func() metric { return newHistogram(name, bounds) }).(*Histogram)
	return m
}

func (r *Registry) get(name, help string, kind Kind, labels []Label, make func() metric) metric {
	printed := printLabels(labels)
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.families[name]
	if f == nil {
		f = &family{name: name, help: help, kind: kind}
	}
	if f.kind != kind {
		panic(fmt.Sprintf("metrics: %s is a %s and cannot be a %s too", name, f.kind, kind))
	}
	for _, s := range f.series {
		if s.labels == printed {
			return s.metric
		}
	}
	if err := checkNames(name, help, labels); err != nil {
		panic(err)
	}
	r.families[name] = f
	m := make()
	f.series = append(f.series, series{printed, m})
	return m
}

// checkNames says what is wrong with names that end up in the text format.
func checkNames(name, help string, labels []Label) error {
	if help == "" {
		return fmt.Errorf("metrics: %s has no help", name)
	}
	if !isName(name) {
		return fmt.Errorf("metrics: %q cannot be the name of a metric", name)
	}
	for i, l := range labels {
		if !isName(l.Name) || strings.HasPrefix(l.Name, "__") || l.Name == "le" {
			return fmt.Errorf("metrics: %q cannot be a label of %s", l.Name, name)
		}
		if slices.ContainsFunc(labels[:i], func(o Label) bool { return o.Name == l.Name }) {
			return fmt.Errorf("metrics: %s has the label %q twice", name, l.Name)
		}
	}
	return nil
}

// isName says whether s is made of letters, digits and underscores and does not
// begin with a digit.
func isName(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}

// A value is a number that several goroutines may change.
type value struct{ bits atomic.Uint64 }

func (v *value) load() float64   { return math.Float64frombits(v.bits.Load()) }
func (v *value) store(f float64) { v.bits.Store(math.Float64bits(f)) }
func (v *value) add(f float64) {
	for {
		old := v.bits.Load()
		if v.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+f)) {
			return
		}
	}
}

// A Counter only grows. Its methods may be called concurrently.
type Counter struct{ v value }

// Inc adds 1.
func (c *Counter) Inc() { c.v.add(1) }

// Add adds n. It ignores what would make the counter shrink, and NaN.
func (c *Counter) Add(n float64) {
	if n > 0 {
		c.v.add(n)
	}
}

// Value returns the count.
func (c *Counter) Value() float64 { return c.v.load() }

func (c *Counter) appendTo(dst []byte, name, labels string) []byte {
	return appendSample(dst, name, "", labels, c.Value())
}

// A Gauge goes up and down. Its methods may be called concurrently.
type Gauge struct{ v value }

// Set sets the value.
func (g *Gauge) Set(f float64) { g.v.store(f) }

// Add adds f, which may be negative.
func (g *Gauge) Add(f float64) { g.v.add(f) }

// Value returns the value.
func (g *Gauge) Value() float64 { return g.v.load() }

func (g *Gauge) appendTo(dst []byte, name, labels string) []byte {
	return appendSample(dst, name, "", labels, g.Value())
}

// A Histogram counts observations by size. Its methods may be called
// concurrently.
type Histogram struct {
	bounds []float64
	les    []string // bounds as they are printed, then +Inf

	mu     sync.Mutex // guards the rest, so that they agree with each other
	counts []uint64   // by bucket, the last is for what is above all bounds
	sum    float64
}

func newHistogram(name string, bounds []float64) *Histogram {
	h := &Histogram{bounds: slices.Clone(bounds), counts: make([]uint64, len(bounds)+1)}
	for i, b := range bounds {
		if math.IsNaN(b) || math.IsInf(b, 0) || i > 0 && b <= bounds[i-1] {
			panic(fmt.Sprintf("metrics: the buckets of %s are not finite and ascending: %v", name, bounds))
		}
		h.les = append(h.les, string(appendNumber(nil, b)))
	}
	h.les = append(h.les, "+Inf")
	return h
}

// Observe counts one observation, in the unit that the name ends in. It ignores
// NaN.
func (h *Histogram) Observe(f float64) {
	if math.IsNaN(f) {
		return
	}
	i, _ := slices.BinarySearch(h.bounds, f) // a bound belongs to its bucket
	h.mu.Lock()
	h.counts[i]++
	h.sum += f
	h.mu.Unlock()
}

// Count returns how many observations there were, and their sum.
func (h *Histogram) Count() (n uint64, sum float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.counts {
		n += c
	}
	return n, h.sum
}

func (h *Histogram) appendTo(dst []byte, name, labels string) []byte {
	h.mu.Lock()
	counts, sum := slices.Clone(h.counts), h.sum
	h.mu.Unlock()
	var n uint64
	for i, c := range counts {
		n += c
		le := `le="` + h.les[i] + `"`
		if labels != "" {
			le = labels + "," + le
		}
		dst = appendSample(dst, name, "_bucket", le, float64(n))
	}
	dst = appendSample(dst, name, "_sum", labels, sum)
	return appendSample(dst, name, "_count", labels, float64(n))
}
