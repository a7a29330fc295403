package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	alerts    = "../../examples/prometheus/alerts.yaml"
	dashboard = "../../examples/prometheus/dashboard.json"
	page      = "../../docs/reference/metrics.md"
)

// promtool is the path of Prometheus' tool; without it the test is skipped.
func promtool(t *testing.T) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("../../internal/tools/promtool.sh")
	cmd.Stderr = &stderr
	path, err := cmd.Output()
	if err != nil {
		t.Skipf("no promtool: %s", &stderr)
	}
	return strings.TrimSpace(string(path))
}

// queries are the expressions in the alerts, the dashboard and the page of metrics, by where
// they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	read := func(file string) []byte {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)\n +expr: (?:>-)?([^:]*)\n +(?:for|labels):`).FindAllSubmatch(read(alerts), -1) {
		found[string(m[1])] = string(m[2])
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(read(dashboard), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			found[p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range board.Templating.List {
		if selector, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			found["variable "+v.Name] = selector[:strings.LastIndex(selector, ", ")]
		}
	}
	for i, m := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllSubmatch(read(page), -1) {
		found[fmt.Sprintf("metrics.md %d", i)] = string(m[1])
	}
	if len(found) < 37 {
		t.Errorf("only %d queries were found", len(found))
	}
	return found
}

var (
	metricName = regexp.MustCompile(`\bmuster_[a-z_]+\b`)
	matcher    = regexp.MustCompile(`(\w+)(?:=~?|!=)"([^"]*)"`)
	ofBucket   = regexp.MustCompile(`_(?:bucket|sum|count)$`)
)

// Each metric, label and value of a label that an example names is in a scrape.
func TestExamplesNameMetrics(t *testing.T) {
	j, _ := newJob()
	scrape := parse(t, text(t, j))
	labels := map[string][]string{"instance": nil, "job": nil, "le": nil}
	for _, family := range scrape {
		for _, m := range family.Metric {
			for _, l := range m.Label {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
	}
	for where, query := range queries(t) {
		for _, name := range metricName.FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(query, `""`), -1) {
			if scrape[name] == nil && scrape[ofBucket.ReplaceAllString(name, "")] == nil {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, m := range matcher.FindAllStringSubmatch(query, -1) {
			known, ok := labels[m[1]]
			if !ok {
				t.Errorf("%s: no metric has a label %s", where, m[1])
			}
			for value := range strings.SplitSeq(m[2], "|") {
				if slices.Contains([]string{"state", "cause", "step"}, m[1]) && !slices.Contains(known, value) {
					t.Errorf("%s: the label %s is never %q", where, m[1], value)
				}
			}
		}
	}
}

// Prometheus can read each query, the alerts and the configuration, and each alert fires for
// what it is for.
func TestExamplesInPromtool(t *testing.T) {
	tool := promtool(t)
	var rules bytes.Buffer
	rules.WriteString("groups:\n- name: queries\n  rules:\n")
	n := 0
	for where, query := range queries(t) {
		query = strings.NewReplacer("$__rate_interval", "5m", "$run_id", "r", "$instance", "a").Replace(query)
		quoted, err := json.Marshal(query)
		if err != nil {
			t.Fatal(err)
		}
		n++
		fmt.Fprintf(&rules, "  - record: query:%d # %s\n    expr: %s\n", n, where, quoted)
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, rules.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", file},
		{"check", "rules", alerts},
		{"check", "config", "../../examples/prometheus/prometheus.yaml"},
		{"test", "rules", "testdata/alerts_test.yaml"},
	} {
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	tests, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for where := range queries(t) {
		if strings.HasPrefix(where, "Muster") && strings.Count(string(tests), "alertname: "+where) < 2 {
			t.Errorf("testdata/alerts_test.yaml does not have %s both ways", where)
		}
	}
}
