package pages

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/slow"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process/warm"
	"github.com/muster-run/muster/timer"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// oneWorker is an agent whose worker is this process.
type oneWorker struct{}

func (oneWorker) Job() *agent.Job { return &agent.Job{} }
func (oneWorker) Workers() []agent.Worker {
	return []agent.Worker{{PID: os.Getpid(), Heartbeat: &timer.Heartbeat{Step: 1200, PerSecond: 3.42}}}
}
func (oneWorker) TimerStats() (timer.Stats, uint64) { return timer.Stats{}, 0 }
func (oneWorker) GPUs(time.Duration) []agent.GPU    { return []agent.GPU{{Percent: new(int)}} }

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
	job.Warm = func() *warm.Stats { return &warm.Stats{Ready: true} }
	job.Times = func(int64) accounts.Spent { return nil }
	job.Slow = func() *slow.Finding { return nil }
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
	page = append(page, metricsQueries...)
	golden(t, "reference/metrics.md", page)
}

// metricsQueries are checked by test/prometheus.
const metricsQueries = `
## Queries

Each series has the label ` + "`instance`" + ` of the agent that Prometheus scraped. The run ID is a label of ` + "`muster_job_info`" + ` only; a join adds it.

Restarts that each job has used, by run ID:

` + "```promql" + `
max by (run_id) (muster_restarts_total * on (instance) group_left (run_id) muster_job_info)
` + "```" + `

Hosts whose workers do not run:

` + "```promql" + `
muster_group_state{state="HEALTHY"} == 0
` + "```" + `

CPUs that each worker has used during the last five minutes; a worker at 0 waits or hangs:

` + "```promql" + `
rate(muster_worker_cpu_seconds_total[5m])
` + "```" + `

Memory of all workers of a host, in bytes:

` + "```promql" + `
sum by (instance) (muster_worker_resident_memory_bytes)
` + "```" + `

Failures of workers during the last day, by cause:

` + "```promql" + `
sum by (cause) (increase(muster_worker_exits_total{cause!~"success|stopped"}[1d]))
` + "```" + `

Seconds within which 95 % of the restarts of the last day had their workers running again:

` + "```promql" + `
histogram_quantile(0.95, sum by (le) (rate(muster_restart_duration_seconds_bucket[1d])))
` + "```" + `

## Alerts and a dashboard

[alerts.yaml](../../examples/prometheus/alerts.yaml) has alert rules for Prometheus, [prometheus.yaml](../../examples/prometheus/prometheus.yaml) a
configuration that reads them and scrapes two hosts, and [dashboard.json](../../examples/prometheus/dashboard.json) a dashboard to import
into Grafana: state, restarts, ends of workers by cause, their CPU time and memory, durations, deadlines.

Tested by: ` + "`test/prometheus`" + `, which checks the names and labels against a scrape, and the queries and alerts with promtool. The dashboard
was not opened in Grafana.
`

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

const eventsPage = `# Events

<!-- Written by "make reference"; the objects come from package events. -->

muster writes an event as one line of JSON ([where](../observe.md#events)). The objects below have line breaks for the reader.
[Formats](../formats.md#events) explains each field.

| ` + "`name`" + ` | when |
|---|---|
| ` + "`torchelastic.worker.status.RENDEZVOUS`" + ` | this host has joined a round, or could not: then ` + "`raw_error`" + ` says why |
| ` + "`torchelastic.worker.status.ASSIGN_WORKER_RANKS`" + ` | the workers of this host have ranks |
| ` + "`torchelastic.worker.status.START`" + ` | a worker has started |
| ` + "`torchelastic.worker.status.SUCCEEDED`" + `, ` + "`…FAILED`" + `, ` + "`…TERMINATED`" + ` | a worker of the last attempt has ended: with 0, by its own failure, or because muster stopped it |
| ` + "`torchelastic.worker.status.SUCCEEDED`" + `, ` + "`…FAILED`" + `, with ` + "`source`" + ` AGENT | the agent ends |
| ` + "`watchdog started`, `watchdog stopped`" + ` | the agent serves the workers' timers, or no longer does (` + "`state`" + ` is RUNNING) |
| ` + "`timer expired`, `kill worker process`" + ` | a worker missed a deadline, and is killed for it |
| ` + "`muster.attempt.failed`" + ` | an attempt failed on this host, whether another one follows or not |
| ` + "`muster.job.preempted`" + ` | the whole job was told to stop |
| ` + "`rendezvous.Next`" + ` | this host joins a round (INIT at first, later RUNNING), has joined it, or could not (FAILED) |
| ` + "`rendezvous.Changes`" + ` | the set of hosts changes, and a new round follows |
| ` + "`rendezvous.Leave`, `rendezvous.Shutdown`" + ` | this host has left the rendezvous, or has closed it for all |
`

// docs/reference/events.md has each event that package events makes; `make reference` writes it.
func TestReferenceEvents(t *testing.T) {
	page := []byte(eventsPage)
	at, code, rank, size := time.UnixMilli(1.7e12), 1, 0, 2
	for _, example := range []struct {
		heading string
		line    events.Line
	}{
		{"An event of the agent", events.Event{
			State: "RENDEZVOUS", Time: at, RunID: "job7", Role: "default", Hostname: "host1", RdzvBackend: "c10d", EntryPoint: "python3",
			Duration: 250 * time.Millisecond}},
		{"An event of a worker", events.Event{
			State: "FAILED", Time: at, RunID: "job7", Role: "default", Hostname: "host1", RdzvBackend: "c10d", EntryPoint: "python3",
			GroupRank: &rank, GroupWorldSize: &size, RunTime: time.Minute,
			Worker: &events.Worker{PID: 4711, Rank: 3, LocalRank: 3, RoleRank: 3, RoleWorldSize: 8, ExitCode: &code}}},
		{"An event of the watchdog", events.Event{
			State: "RUNNING", Time: at, RunID: "job7", Role: "default", Hostname: "host1", RdzvBackend: "c10d", EntryPoint: "python3",
			GroupRank: &rank, GroupWorldSize: &size,
			Watchdog: &agent.Watchdog{Name: "timer expired", Request: &timer.Request{PID: 4711, ScopeID: "step", ExpirationTime: time.Unix(1.7e9, 0), Signal: 9}}}},
		{"An attempt failed", events.AttemptEvent{
			Time: at, RunID: "job7", Rank: &size, LocalRank: 2, PID: 4711, Role: "default", Hostname: "host1", Host: "host1", MaxRestarts: 3,
			Cause: failure.CauseExitCode, ExitCode: 1, Message: "ValueError: boom", Ran: 60000, Progress: events.Progress{Step: 120}}},
		{"A job is preempted", events.PreemptedEvent{
			Time: at, RunID: "job7", GroupRank: &rank, Role: "default", Hostname: "host1", Host: "host0", Signal: failure.Signal(15), SignalTime: 1.7e12}},
		{"A step of the rendezvous", events.RdzvEvent{
			Name: "rendezvous.Next", RunID: "job7", Message: "joined round 0 as node 0 of 2", Hostname: "host1", PID: 4700, NodeState: "RUNNING",
			MasterEndpoint: "10.0.0.1:29500", Rank: &rank, Time: 1.7e12}},
	} {
		var indented bytes.Buffer
		if err := json.Indent(&indented, example.line.Append(nil), "", "  "); err != nil {
			t.Fatal(err)
		}
		page = fmt.Appendf(page, "\n## %s\n\n```json\n%s\n```\n", example.heading, &indented)
	}
	golden(t, "reference/events.md", page)

	names := 0
	for _, file := range []string{"events/observer.go", "events/own.go", "agent/watchdog.go"} {
		source, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range eventName.FindAllSubmatch(source, -1) {
			names++
			if !bytes.Contains([]byte(eventsPage), m[1]) {
				t.Errorf("docs/reference/events.md lacks %s of %s", m[1], file)
			}
		}
	}
	if names < 20 {
		t.Errorf("only %d names of events were found", names)
	}
}

// eventName is what an event is called, or its state.
var eventName = regexp.MustCompile(`"((?:rendezvous|muster)\.[\w.]+|[A-Z_]{6,}|(?:watchdog|timer|kill) [a-z ]+)"`)

// docs/reference/exit-codes.md has each status that muster itself ends with.
func TestExitStatuses(t *testing.T) {
	found := readTables(readPage(t, "reference/exit-codes.md"))
	named := strings.Join(codeSpans(readPage(t, "reference/exit-codes.md"), false), " ")
	for _, rows := range found {
		for _, r := range rows {
			named += " " + strings.Join(r.cells, " ")
		}
	}
	statuses := 0
	for _, file := range []string{"cmd/muster/internal/console/status.go", "failure/preemption.go"} {
		source, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range exitStatus.FindAllSubmatch(source, -1) {
			statuses++
			if !slices.Contains(strings.Fields(named), string(m[1])) {
				t.Errorf("docs/reference/exit-codes.md lacks %s of %s", m[1], file)
			}
		}
	}
	if statuses < 5 {
		t.Errorf("only %d statuses were found", statuses)
	}
}

var exitStatus = regexp.MustCompile(`(?m)^(?:\tExit[A-Z]\w+|const \w+Status) += (\d+)$`)
