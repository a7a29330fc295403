//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/pypeer"
)

// replacements make events of different runs equal, as those under testdata of
// packages events and metrics are.
var replacements = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`"run_id": "[0-9a-f]{8}-[0-9a-f-]{27}"`), `"run_id": "<UUID>"`},
	{regexp.MustCompile(`"hostname": "[^"]+"`), `"hostname": "<FQDN>"`},
	{regexp.MustCompile(`"worker_id": "\d+"`), `"worker_id": "<PID>"`},
	{regexp.MustCompile(`"total_run_time": \d+`), `"total_run_time": <SECS>`},
	{regexp.MustCompile(`"duration_ms": \d+\.\d+(e-\d+)?`), `"duration_ms": <FLOAT>`},
	{regexp.MustCompile(`\\"worker_pid\\": (\[?)\d+`), `\"worker_pid\": ${1}<PID>`},
	{regexp.MustCompile(`\\"worker_pid\\": \\"\d+`), `\"worker_pid\": \"<PID>`},
	{regexp.MustCompile(`\\"expiration_time\\": \\"\d+\.\d+`), `\"expiration_time\": \"<UNIX_FLOAT>`},
	{regexp.MustCompile(`\\"timestamp\\": \\"\d{10}\\"`), `\"timestamp\": \"<UNIX_SECS>\"`},
	{regexp.MustCompile(`File \\\\\\"[^ ]*/torch/distributed`), `File \\\"<SITE>/torch/distributed`},
	{regexp.MustCompile(`File \\\\\\"[^ ]*rec\.py`), `File \\\"<CWD>/rec.py`},
	// Differences on purpose (D16): real times, plain numbers for lists of one.
	{regexp.MustCompile(`"timestamp": \d+`), `"timestamp": 0`},
	{regexp.MustCompile(`(\\"(?:local_rank|role_rank|role_world_size|exit_code|worker_pid)\\": )([^,}\[\\]+)`), `$1[$2]`},
}

// goldenEvents are the lines that torchrun printed.
func goldenEvents(t *testing.T, name string) []string {
	return strings.Split(strings.TrimSpace(contents(t, filepath.Join("../../events/testdata/torchrun-2.15", name))), "\n")
}

// sameEvents compares lines with torchrun's. A failed job's agent has failed (D16).
func sameEvents(t *testing.T, golden string, got []string) {
	t.Helper()
	want := goldenEvents(t, golden)
	if strings.Contains(golden, "fail") {
		want[len(want)-1] = strings.ReplaceAll(want[len(want)-1], "SUCCEEDED", "FAILED")
	}
	for i := range got {
		for _, r := range replacements {
			got[i] = r.pattern.ReplaceAllString(got[i], r.with)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

// goldenRuns are the runs of which torchrun's events are known.
var goldenRuns = []struct {
	golden, flags string
	status        int
	program       []string
}{
	{"success_2workers.jsonl", "--standalone --nproc-per-node 2", 0, []string{"-c", "pass"}},
	{"restart_then_fail_record.jsonl", "--standalone --nproc-per-node 2 --max-restarts 1", 1, []string{"testdata/goldenrec.py", "raise"}},
}

// Events of real runs are torchrun's, on the console and in a file. The file has
// those of the rendezvous, too, and one of our own for each attempt that failed.
func TestEventsMatchGolden(t *testing.T) {
	t.Parallel()
	for _, tt := range goldenRuns {
		t.Run(tt.golden, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "events.jsonl")
			program := append([]string{pypeer.Python(t)}, tt.program...)
			j := run(t, muster(t), setup{}, tt.flags+" --event-log-handler console --event-log-file "+file+" --no-python", program...).want(tt.status)
			sameEvents(t, tt.golden, grep(j.errs(), `^\{"name"`))
			var agents, rdzv []string
			attempts := 0
			for line := range strings.Lines(contents(t, file)) {
				switch line = strings.TrimSuffix(line, "\n"); {
				case strings.Contains(line, `"node_state"`):
					rdzv = append(rdzv, line)
				case strings.Contains(line, `"name": "muster.attempt.failed"`):
					attempts++
				default:
					agents = append(agents, line)
				}
			}
			if want := 2 * tt.status; attempts != want {
				t.Errorf("%d attempts have failed, want %d", attempts, want)
			}
			sameEvents(t, tt.golden, agents)
			var names []string
			for _, line := range rdzv {
				var e struct{ Name, Node_State string }
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				names = append(names, e.Name+" "+e.Node_State)
			}
			want := []string{"rendezvous.Next INIT", "rendezvous.Next RUNNING"}
			if tt.status != 0 { // it restarts
				want = append(want, "rendezvous.Next RUNNING", "rendezvous.Next RUNNING")
			}
			want = append(want, "rendezvous.Shutdown SUCCEEDED")
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("rendezvous (-want +got):\n%s", diff)
			}
		})
	}
}

// A worker that misses its deadline: torchrun kills itself, too, and its events end
// there (D13).
func TestWatchdogEventsMatchGolden(t *testing.T) {
	t.Parallel()
	hang := script(t, "hang.py", `
import os, signal
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=0.2, scope="sc"):
    signal.pause()
`)
	s := setup{env: []string{"TORCHELASTIC_ENABLE_FILE_TIMER=1"}}
	j := run(t, muster(t), s, "--standalone --event-log-handler console --no-python", pypeer.Python(t), hang).want(1)
	lines := grep(j.errs(), `^\{"name"`)
	const golden = "watchdog_expired.jsonl"
	n := len(goldenEvents(t, golden))
	if len(lines) != n+3 {
		t.Fatalf("%d events, want torchrun's %d and the watchdog's, the worker's and the agent's end\n%s", len(lines), n, j.errs())
	}
	for i, want := range []string{`{"name": "watchdog stopped", "source": "AGENT"`, `{"name": "torchelastic.worker.status.FAILED", "source": "WORKER"`, `{"name": "torchelastic.worker.status.FAILED", "source": "AGENT"`} {
		if got := lines[n+i]; !strings.HasPrefix(got, want) {
			t.Errorf("event %d is %s, want %s", n+i, got, want)
		}
	}
	sameEvents(t, golden, lines[:n])
}

var (
	metricTime  = regexp.MustCompile(`^\[\d+\.\d+\]`)
	metricValue = regexp.MustCompile(`(\.duration\.ms)=\d+$`)
	poll        = "LocalElasticAgent._monitor_workers."
	healthy     = regexp.MustCompile(`workers\.default\.healthy=1$`)
)

// metricLines are the metrics of a run without what depends on the clock: values,
// and how often a look at the workers found them well. torchrun looks ten times a
// second; muster only when there is something to see.
func metricLines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.Contains(line, "][torchelastic]: ") && !strings.Contains(line, ">][torchelastic]: ") {
			continue
		}
		line = metricTime.ReplaceAllString(line, "[<UNIX_FLOAT>]")
		line = metricValue.ReplaceAllString(line, "$1=<MS>")
		all = append(all, line)
		if healthy.MatchString(line) && len(all) >= 4 && strings.Contains(all[len(all)-4], poll) {
			all = all[:len(all)-4]
		}
	}
	return all
}

// Metrics of real runs are torchrun's, in its order.
func TestMetricsMatchGolden(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		golden, flags string
		status        int
		steps         []string
	}{
		{"success.txt", "--standalone", 0, []string{"exit:0"}},
		{"restart_then_fail.txt", "--standalone --nproc-per-node 2 --max-restarts 1", 1, []string{"r1:exit:3", "hang"}},
	} {
		t.Run(tt.golden, func(t *testing.T) {
			t.Parallel()
			j := workers(t, muster(t), setup{}, tt.flags+" --metrics-handler console", tt.steps...).want(tt.status)
			want := metricLines(contents(t, filepath.Join("../../metrics/testdata/torchrun-2.15", tt.golden)))
			if len(want) < 10 {
				t.Fatalf("the golden run has %q", want)
			}
			if diff := cmp.Diff(want, metricLines(j.out())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// PyTorch's own classes read the lines and write them as they are.
func TestTorchReadsEvents(t *testing.T) {
	t.Parallel()
	python := pypeer.Python(t)
	file := filepath.Join(t.TempDir(), "events.jsonl")
	workers(t, muster(t), setup{}, "--standalone --event-log-file "+file, "exit:0").want(0)
	read := script(t, "read.py", `
import json, sys
from torch.distributed.elastic.events.api import Event, RdzvEvent
for line in open(sys.argv[1]):
    line = line.rstrip("\n")
    if '"node_state"' in line:
        fields = json.loads(line)
        assert fields.pop("timestamp") > 1.7e12, line
        line = json.dumps(fields)
        e = RdzvEvent.deserialize(line)
    else:
        e = Event.deserialize(line)
        assert e.timestamp > 1.7e12, line
        json.loads(e.metadata["metadata"])
    assert e.serialize() == line, (e.serialize(), line)
    print(type(e).__name__)
`)
	out, err := exec.Command(python, read, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, want := strings.Fields(string(out)), []string{"RdzvEvent", "RdzvEvent", "Event", "Event", "Event", "Event", "Event", "RdzvEvent"}; !cmp.Equal(got, want) {
		t.Errorf("PyTorch reads %v, want %v", got, want)
	}
}

// Where the file goes, and what is said where it cannot.
func TestEventFile(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	j := workers(t, muster(t), setup{}, "--standalone --event-log-handler file --log-dir "+logs, "exit:0").want(0)
	if text := contents(t, one(t, logs, "*/events.jsonl")); strings.Count(text, "\n") != 8 || strings.Contains(j.errs(), "torchelastic.worker") {
		t.Errorf("the file has\n%s\nthe console\n%s", text, j.errs())
	}
	t.Run("refused", func(t *testing.T) {
		j := workers(t, muster(t), setup{}, "--standalone --event-log-file "+exe+"/events.jsonl", "ready", "exit:0").want(2)
		j.says("--event-log-file", exe+"/events.jsonl", "not a directory")
		if n := len(j.rest()); n > 0 {
			t.Errorf("a worker has started")
		}
	})
	t.Run("disk full", func(t *testing.T) {
		j := workers(t, muster(t), setup{}, "--standalone --event-log-file /dev/full", "exit:0").want(0)
		j.says("no space left", "events were lost")
		if n := len(grep(j.errs(), "no space left")); n != 1 {
			t.Errorf("it says so %d times\n%s", n, j.errs())
		}
	})
	t.Run("shared", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "events.jsonl")
		flags := "--standalone --nproc-per-node 4 --event-log-file " + file
		var all []*job
		for range 4 {
			all = append(all, workers(t, muster(t), setup{}, flags, "exit:0"))
		}
		for _, j := range all {
			j.want(0)
		}
		lines := bytes.Split(bytes.TrimSpace([]byte(contents(t, file))), []byte("\n"))
		for _, line := range lines {
			if !json.Valid(line) {
				t.Errorf("not JSON: %s", line)
			}
		}
		if want := 4 * (3 + 2 + 4 + 4 + 1); len(lines) != want {
			t.Errorf("%d lines, want %d", len(lines), want)
		}
	})
}
