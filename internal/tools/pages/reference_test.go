package pages

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/timer"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// oneWorker is an agent whose worker is this process.
type oneWorker struct{}

func (oneWorker) Job() *agent.Job                   { return &agent.Job{} }
func (oneWorker) Workers() []agent.Worker           { return []agent.Worker{{PID: os.Getpid()}} }
func (oneWorker) TimerStats() (timer.Stats, uint64) { return timer.Stats{}, 0 }

var (
	sample     = regexp.MustCompile(`^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	dimensions = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// docs/reference/metrics.md is what /metrics says; `make reference` writes it.
func TestReference(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems tell less of a process")
	}
	var job metrics.Job
	job.Watch(oneWorker{})
	var scrape bytes.Buffer
	if err := job.WritePrometheus(&scrape); err != nil {
		t.Fatal(err)
	}
	page := []byte(`# Metrics

<!-- Written by "make reference" from what package metrics writes. -->

What ` + "`/metrics`" + ` has for Prometheus ([watching a job](../observe.md)). The unit is in the name. Each agent has the metrics of its own
host; counters begin at 0 when it starts. A histogram has ` + "`_bucket`, `_sum` and `_count`" + `, and buckets from a millisecond to ten minutes.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	help, labels, values := "", []string(nil), map[string][]string{}
	name, kind := "", ""
	row := func() {
		if name == "" {
			return
		}
		for i, label := range labels {
			labels[i] = "`" + label + "`"
			if v := values[label]; len(v) > 1 {
				labels[i] += ": " + strings.Join(v, ", ")
			}
		}
		page = fmt.Appendf(page, "| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), help)
	}
	for line := range strings.Lines(scrape.String()) {
		if text, ok := strings.CutPrefix(line, "# HELP "); ok {
			row()
			name, help, _ = strings.Cut(strings.TrimSpace(text), " ")
			labels, values = nil, map[string][]string{}
		} else if text, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, kind, _ = strings.Cut(strings.TrimSpace(text), " ")
		} else if m := sample.FindStringSubmatch(line); m != nil {
			for _, d := range dimensions.FindAllStringSubmatch(m[2], -1) {
				if d[1] == "le" {
					continue
				}
				if !slices.Contains(labels, d[1]) {
					labels = append(labels, d[1])
				}
				values[d[1]] = append(values[d[1]], d[2])
			}
		}
	}
	row()
	golden(t, "reference/metrics.md", page)
}

// golden compares a page with what it must be, or writes it.
func golden(t *testing.T, name string, want []byte) {
	t.Helper()
	path := root + "/docs/" + name
	if *update {
		if err := os.WriteFile(path, want, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("docs/%s differs from the code (-code +page); `make reference` writes it:\n%s", name, diff)
	}
}
