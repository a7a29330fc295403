package events_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/timer"
)

// lines returns golden events with their volatile parts filled in, in our
// spelling: real timestamps and plain values (D16).
func lines(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/torchrun-2.15/" + name)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		`"timestamp": 0`, `"timestamp": 1795233104250`,
		`[0]`, `0`, `[1]`, `1`, `[2]`, `2`, `[null]`, `null`, `[-15]`, `-15`, `[<PID>]`, `41`,
		`<UUID>`, `job7`, `<FQDN>`, `h.example`, `<SECS>`, `0`, `<FLOAT>`, `1.5`, `<PID>`, `41`, `<UNIX_SECS>`, `1795233104`, `<UNIX_FLOAT>`, `1795233104.5`,
	).Replace(string(b))
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// at is what all events of these runs have.
func at(e events.Event) events.Event {
	e.Time = time.UnixMilli(1795233104250)
	e.RunID, e.Role, e.Hostname, e.RdzvBackend, e.EntryPoint = "job7", "default", "h.example", "c10d", "python3"
	return e
}

func host(s string) events.Event {
	e := at(events.Event{State: s})
	if s == "RENDEZVOUS" || s == "ASSIGN_WORKER_RANKS" {
		e.Duration = 1500 * time.Microsecond
	}
	return e
}

func worker(rank int, s string) events.Event {
	return in(at(events.Event{State: s, Worker: &events.Worker{PID: 41, Rank: rank, LocalRank: rank, RoleRank: rank, RoleWorldSize: 2}}))
}

// in sets what an agent knows after its first rendezvous.
func in(e events.Event) events.Event {
	e.GroupRank, e.GroupWorldSize = new(0), new(1)
	return e
}

func check(t *testing.T, want []string, all []events.Event) {
	t.Helper()
	var b bytes.Buffer
	sink, err := events.Open(events.Config{Handler: "console", Console: &b})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		sink.Record(e)
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Source: golden/events.
func TestConsoleSuccess(t *testing.T) {
	check(t, lines(t, "success_2workers.jsonl"), []events.Event{
		host("RENDEZVOUS"), host("ASSIGN_WORKER_RANKS"),
		worker(0, "START"), worker(1, "START"),
		worker(0, "SUCCEEDED"), worker(1, "SUCCEEDED"),
		in(host("SUCCEEDED")),
	})
}

func TestConsoleFailure(t *testing.T) {
	want := lines(t, "restart_then_fail_record.jsonl")
	// The agent of a failed job has failed (D16).
	want[len(want)-1] = strings.ReplaceAll(want[len(want)-1], "SUCCEEDED", "FAILED")
	again := func(e events.Event) events.Event { e.Restarts = 1; return e }
	failed := func(e events.Event, code int, raw string) events.Event {
		e.Worker.ExitCode, e.RawError, e.Restarts = new(code), raw, 1
		return e
	}
	var golden struct{ Metadata map[string]any }
	if err := json.Unmarshal([]byte(want[9]), &golden); err != nil {
		t.Fatal(err)
	}
	check(t, want, []events.Event{
		host("RENDEZVOUS"), host("ASSIGN_WORKER_RANKS"),
		worker(0, "START"), worker(1, "START"),
		again(in(host("RENDEZVOUS"))), again(in(host("ASSIGN_WORKER_RANKS"))),
		again(worker(0, "START")), again(worker(1, "START")),
		failed(worker(0, "FAILED"), -15, `{"message": "<NONE>"}`),
		failed(worker(1, "FAILED"), 1, golden.Metadata["raw_error"].(string)),
		again(in(host("FAILED"))),
	})
}

// Source: golden/events/watchdog_expired.jsonl.
func TestWatchdog(t *testing.T) {
	want := lines(t, "watchdog_expired.jsonl")
	did := func(name string, r *timer.Request) events.Event {
		return in(at(events.Event{State: "RUNNING", Watchdog: &agent.Watchdog{Name: name, Request: r}}))
	}
	request := &timer.Request{PID: 41, ScopeID: "sc", ExpirationTime: time.UnixMilli(1795233104500), Signal: 9}
	check(t, []string{want[2], want[4], want[5]}, []events.Event{
		did("watchdog started", nil), did("timer expired", request), did("kill worker process", request),
	})
	for seconds, want := range map[int64]string{0: "0.0", 253402300800: "253402300800.0"} {
		got := string(did("timer expired", &timer.Request{ExpirationTime: time.Unix(seconds, 0), Signal: -1}).Append(nil))
		if want := `\"expiration_time\": \"` + want + `\", \"signal\": \"-1\"}`; !strings.Contains(got, want) {
			t.Errorf("%v: got %s, want in it %s", seconds, got, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	before := time.Now().UnixMilli()
	var got struct {
		Name      string
		Timestamp int64
		Metadata  map[string]any
	}
	if err := json.Unmarshal(events.Event{State: "SUCCEEDED", RunTime: 2900 * time.Millisecond}.Append(nil), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "torchelastic.worker.status.SUCCEEDED" || got.Timestamp < before || got.Timestamp > time.Now().UnixMilli() {
		t.Errorf("got %+v", got)
	}
	for key, want := range map[string]any{"total_run_time": 2.0, "raw_error": nil, "worker_id": nil, "duration_ms": nil, "global_rank": nil} {
		if v, ok := got.Metadata[key]; !ok || v != want {
			t.Errorf("%s is %v, want %v", key, v, want)
		}
	}
}

func TestHandlers(t *testing.T) {
	for _, name := range []string{"null", "dynamic_rendezvous", ""} {
		var b bytes.Buffer
		sink, err := events.Open(events.Config{Handler: name, Console: &b})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if sink.Record(host("SUCCEEDED")); b.Len() > 0 {
			t.Errorf("%q printed %s", name, b.Bytes())
		}
	}
	for _, name := range []string{"", "null", "console", "dynamic_rendezvous", "file"} {
		if err := (&events.Config{Handler: name}).Check(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	bad := events.Config{Handler: "my_handler"}
	if _, err := events.Open(bad); err == nil || !strings.Contains(err.Error(), "my_handler") {
		t.Errorf("Open: %v", err)
	}
	err := bad.Check()
	for _, part := range []string{`"my_handler"`, "console", "null", "dynamic_rendezvous", "file", "Python"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %s: %v", part, err)
		}
	}
	nowhere := events.Config{Handler: "file", LogDir: os.DevNull}
	if err := nowhere.Check(); err == nil || !strings.Contains(err.Error(), "no log directory for events.jsonl") {
		t.Errorf("no log directory: %v", err)
	}
}

// Each event is one Write, so that lines of several goroutines stay whole.
func TestConsoleConcurrent(t *testing.T) {
	w := &writes{}
	sink, err := events.Open(events.Config{Handler: "console", Console: w})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				sink.Record(host("RENDEZVOUS"))
			}
		})
	}
	wg.Wait()
	if len(w.all) != 400 {
		t.Errorf("%d writes of 400 events", len(w.all))
	}
	for _, line := range w.all {
		if !json.Valid([]byte(line)) || strings.Count(line, "\n") != 1 {
			t.Fatalf("not a line of JSON: %q", line)
		}
	}
}

type writes struct{ all []string } // the sink's lock is what guards it

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	return len(p), nil
}
