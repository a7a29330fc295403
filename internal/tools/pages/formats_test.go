package pages

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	gm "github.com/yuin/goldmark/ast"
	tables "github.com/yuin/goldmark/extension/ast"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/timer"
)

// A row of a table: its cells as plain text, and the code spans of the first cell and
// of the others.
type row struct{ cells, first, rest []string }

// readTables returns the rows of the tables of a page by the heading above them.
func readTables(p *page) map[string][]row {
	found := map[string][]row{}
	heading := ""
	_ = gm.Walk(p.tree, func(n gm.Node, entering bool) (gm.WalkStatus, error) {
		switch {
		case !entering:
		case n.Kind() == gm.KindHeading:
			heading = string(plain(n, p.text))
		case n.Kind() == tables.KindTableRow:
			r := row{}
			for cell := n.FirstChild(); cell != nil; cell = cell.NextSibling() {
				r.cells = append(r.cells, string(plain(cell, p.text)))
				spans := spansOf(p, cell)
				if cell == n.FirstChild() {
					r.first = spans
				} else {
					r.rest = append(r.rest, spans...)
				}
			}
			found[heading] = append(found[heading], r)
			return gm.WalkSkipChildren, nil
		}
		return gm.WalkContinue, nil
	})
	return found
}

func spansOf(p *page, n gm.Node) []string {
	var found []string
	_ = gm.Walk(n, func(n gm.Node, entering bool) (gm.WalkStatus, error) {
		if n.Kind() == gm.KindCodeSpan && entering {
			found = append(found, string(plain(n, p.text)))
		}
		return gm.WalkContinue, nil
	})
	return found
}

// fieldsOf are the names in JSON of a struct's fields.
func fieldsOf(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, fieldsOf(f.Type)...)
		case !f.IsExported() || name == "-":
		case name == "":
			names = append(names, f.Name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// fields are the names of an object's members.
func fields(t *testing.T, text []byte, within ...string) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, name := range within {
		if v = v.(map[string]any)[name]; v == nil {
			t.Fatalf("there is no %s in %s", name, text)
		}
		if list, ok := v.([]any); ok {
			v = list[0]
		}
		if text, ok := v.(string); ok { // JSON within JSON
			v = nil
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
		}
	}
	return slices.Collect(maps.Keys(v.(map[string]any)))
}

// docs/formats.md has each field of what muster writes for programs, and no others.
func TestFormats(t *testing.T) {
	found := readTables(readPage(t, "formats.md"))
	want := map[string][]string{
		"autopsy.json":         append(fieldsOf(reflect.TypeFor[autopsy.Report]()), "summary", "groups"),
		"Worker of an autopsy": fieldsOf(reflect.TypeFor[autopsy.Worker]()),
		"Python":               fieldsOf(reflect.TypeFor[autopsy.Python]()),
		"Native":               fieldsOf(reflect.TypeFor[autopsy.Native]()),
		"Flight recorder":      fieldsOf(reflect.TypeFor[autopsy.Flight]()),
		"Group":                fieldsOf(reflect.TypeFor[autopsy.Group]()),

		"/v1/state":   fieldsOf(reflect.TypeFor[jobstate.State]()),
		"Warm starts": fieldsOf(reflect.TypeFor[warm.Stats]()),
		"Job":         fieldsOf(reflect.TypeFor[jobstate.Job]()),
		"Preemption":  fieldsOf(reflect.TypeFor[failure.Preemption]()),
		"Host":        fieldsOf(reflect.TypeFor[jobstate.Host]()),
		"Worker":      fieldsOf(reflect.TypeFor[jobstate.Worker]()),
		"Exit":        fieldsOf(reflect.TypeFor[jobstate.Exit]()),
		"Usage":       fieldsOf(reflect.TypeFor[jobstate.Usage]()),
		"Heartbeat":   fieldsOf(reflect.TypeFor[jobstate.Heartbeat]()),
		"Moment":      fieldsOf(reflect.TypeFor[jobstate.Moment]()),
		"Failure":     fieldsOf(reflect.TypeFor[jobstate.Failure]()),
		"time.jsonl":  fieldsOf(reflect.TypeFor[accounts.Mark]()),
	}
	addReport(t, want)
	addEvents(t, want)
	addErrorFile(t, want)
	addJobFile(t, want)
	for heading, names := range want {
		var have []string
		for _, r := range found[heading] {
			have = append(have, r.first...)
		}
		slices.Sort(names)
		slices.Sort(have)
		if diff := cmp.Diff(names, have); diff != "" {
			t.Errorf("docs/formats.md, %s (-written +on the page)\n%s", heading, diff)
		}
	}
}

func addReport(t *testing.T, want map[string][]string) {
	t.Helper()
	report := failure.NewReport(failure.ReportConfig{Title: "train.py"}, []*failure.ProcessFailure{{Observation: failure.Observation{ExitCode: 3}, Collectives: []failure.Collective{{Seq: 1}}}})
	report.Decision = "stopped by rule a of b:1"
	report.Preempted = &failure.Preemption{Signal: failure.Signal(syscall.SIGTERM), Workers: []failure.PreemptedWorker{{}}}
	text, err := report.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	want["report.json"] = fields(t, text)
	want["Of each failure"] = fields(t, text, "failures")
	want["Of a preempted job"] = fields(t, text, "preempted")
	want["Of each preempted worker"] = fields(t, text, "preempted", "workers")
}

func addEvents(t *testing.T, want map[string][]string) {
	t.Helper()
	code := 3
	worker := events.Event{State: "FAILED", Worker: &events.Worker{ExitCode: &code}}.Append(nil)
	want["Events"] = fields(t, worker)
	want["Metadata of torch's events"] = fields(t, worker, "metadata")
	want["Metadata within the metadata"] = fields(t, worker, "metadata", "metadata")
	want["Metadata within the metadata of the watchdog"] = fields(t,
		events.Event{Watchdog: &agent.Watchdog{Name: "timer expired", Request: &timer.Request{}}}.Append(nil), "metadata", "metadata")
	want["Metadata of muster.attempt.failed"] = fields(t, events.AttemptEvent{}.Append(nil), "metadata")
	want["Metadata of muster.job.preempted"] = fields(t, events.PreemptedEvent{SignalTime: 1}.Append(nil), "metadata")
	want["Steps of the rendezvous"] = fields(t, events.RdzvEvent{}.Append(nil))
}

func addErrorFile(t *testing.T, want map[string][]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "error.json")
	if err := failure.WriteErrorFile(path, &failure.ProcessFailure{Observation: failure.Observation{ExitCode: 3}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want["Error files"] = fields(t, text)
	want["Its message"] = fields(t, text, "message")
}

func addJobFile(t *testing.T, want map[string][]string) {
	t.Helper()
	dir := t.TempDir()
	w, err := jobfile.Create(dir, jobfile.Begin{})
	if err == nil {
		err = w.End(jobfile.End{}, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, jobfile.Name))
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(text), "\n")
	want["job.jsonl"] = fields(t, []byte(first))
	want["The second line of job.jsonl"] = fields(t, []byte(second))
}

// What a row says is in a field, is in it.
func TestFormatsWithin(t *testing.T) {
	found := readTables(readPage(t, "formats.md"))
	for _, tt := range []struct {
		heading, field string
		types          []reflect.Type
	}{
		{"Worker of an autopsy", "children", []reflect.Type{reflect.TypeFor[autopsy.Process]()}},
		{"Python", "threads", []reflect.Type{reflect.TypeFor[autopsy.Thread](), reflect.TypeFor[autopsy.Frame]()}},
		{"Native", "threads", []reflect.Type{reflect.TypeFor[autopsy.NativeThread]()}},
		{"Message", "ranks", []reflect.Type{reflect.TypeFor[rendezvous.Ranks]()}},
		{"Message", "waiting", []reflect.Type{reflect.TypeFor[rendezvous.Waiting]()}},
	} {
		i := slices.IndexFunc(found[tt.heading], func(r row) bool { return slices.Contains(r.first, tt.field) })
		if i < 0 {
			t.Errorf("docs/formats.md, %s: there is no row for %s", tt.heading, tt.field)
			continue
		}
		for _, typ := range tt.types {
			for _, name := range fieldsOf(typ) {
				if !slices.Contains(found[tt.heading][i].rest, name) {
					t.Errorf("docs/formats.md, %s, %s: %s of %v is missing", tt.heading, tt.field, name, typ)
				}
			}
		}
	}
}

// What the code has no exported type for is taken from its text.
func TestFormatsInSource(t *testing.T) {
	found := readTables(readPage(t, "formats.md"))
	firsts := func(heading string) (names []string) {
		for _, r := range found[heading] {
			names = append(names, r.first...)
		}
		slices.Sort(names)
		return names
	}
	source := func(file, from, to, pattern string) (names []string) {
		content, err := os.ReadFile(filepath.Join("../../..", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		_, text, ok := strings.Cut(string(content), from)
		if text, _, _ = strings.Cut(text, to); !ok {
			t.Fatalf("there is no %q in %s", from, file)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return names
	}
	keys := slices.Concat(
		source("agent/internal/peers/peers.go", "const (", ")", `= "([^"]+)"`),
		source("agent/internal/peers/ranks.go", "const (", ")", `= "([^"]+)"`),
		source("agent/internal/evidence/job.go", "const (", ")", `= "([^"]+)"`))
	for i, key := range keys {
		switch {
		case key == "muster/autopsy/":
			keys[i] += "<number>"
		case strings.HasSuffix(key, "/"):
			keys[i] += "<group rank>"
		}
	}
	slices.Sort(keys)
	for _, tt := range []struct {
		heading string
		want    []string
	}{
		{"muster/failed", source("agent/internal/peers/record.go", "type Record struct", "\n}", `json:"(\w+)`)},
		{"What --on-event reads", source("launch/onevent.go", "type eventDocument struct", "\n}", `json:"(\w+)`)},
		{"Message", source("rendezvous/internal/server/message.go", "// A Message is one", "// An origin is", `json:"(\w+)`)},
		{"The rendezvous state", source("rendezvous/internal/pickle/encode.go", "func Encode(", "\n}", `str\("(\w+)"\)`)},
		{"What agents keep in stores", keys},
	} {
		if diff := cmp.Diff(tt.want, firsts(tt.heading)); diff != "" {
			t.Errorf("docs/formats.md, %s (-written +on the page)\n%s", tt.heading, diff)
		}
	}
	var types []string
	for _, r := range found["The rendezvous protocol"] {
		types = append(append(types, r.first...), r.rest...)
	}
	for _, name := range source("rendezvous/internal/server/message.go", "// Messages from a node", "// A Message is", ` Type = "(\w+)"`) {
		if !slices.Contains(types, name) {
			t.Errorf("docs/formats.md does not have the rendezvous' message %s", name)
		}
	}
}
