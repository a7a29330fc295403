package agent_test

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
)

// scrape returns what Prometheus gets, without what is zero. A histogram is its
// count.
func scrape(t *testing.T, r *metrics.Job) map[string]float64 {
	t.Helper()
	var b bytes.Buffer
	if err := r.WritePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(b.String()) {
		key, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(text, 64)
		if !strings.HasPrefix(key, "muster_") || err != nil || v == 0 || strings.Contains(key, "_bucket{") || strings.HasSuffix(key, "_sum") || strings.Contains(key, "_info{") {
			continue
		}
		all[strings.TrimSuffix(strings.TrimPrefix(key, "muster_"), "_duration_seconds_count")] = v
	}
	return all
}

func TestMetrics(t *testing.T) {
	terminated := func(ctx context.Context, up func()) context.Context {
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			up()
			cancel(&process.SignalError{Signal: syscall.SIGTERM})
		}()
		return ctx
	}
	tests := []struct {
		name, function, arg string
		max                 int
		stop                bool // once all workers run
		want                map[string]float64
	}{
		{"success", "rank", "", 3, false, map[string]float64{
			"group_state{state=\"SUCCEEDED\"}": 1, "worker_exits_total{cause=\"success\"}": 2, "restarts_remaining": 3,
			"rendezvous": 1, "rank_assignment": 1, "worker_start": 1, "initialization": 1,
			"nodes": 1, "world_size": 2, "local_world_size": 2,
		}},
		{"restarts", "fail until", "2", 3, false, map[string]float64{
			"group_state{state=\"SUCCEEDED\"}": 1, "restarts_remaining": 1, "restarts_total": 2,
			"worker_exits_total{cause=\"success\"}": 2, "worker_exits_total{cause=\"exit_code\"}": 2, "worker_exits_total{cause=\"stopped\"}": 2,
			"rendezvous": 3, "rank_assignment": 3, "worker_start": 3, "initialization": 3, "worker_stop": 2, "restart": 2,
			"round": 2, "nodes": 1, "world_size": 2, "local_world_size": 2,
		}},
		{"failure", "fail until", "9", 0, false, map[string]float64{
			"group_state{state=\"FAILED\"}": 1, "worker_exits_total{cause=\"exit_code\"}": 1, "worker_exits_total{cause=\"stopped\"}": 1,
			"rendezvous": 1, "rank_assignment": 1, "worker_start": 1, "initialization": 1, "worker_stop": 1,
			"nodes": 1, "world_size": 2, "local_world_size": 2,
		}},
		{"no such program", "", "", 1, false, map[string]float64{
			"group_state{state=\"FAILED\"}": 1, "worker_exits_total{cause=\"not_started\"}": 1, "restarts_remaining": 1,
			"rendezvous": 1, "rank_assignment": 1, "worker_start": 1, "initialization": 1,
			"step_failures_total{step=\"worker_start\"}": 1, "step_failures_total{step=\"initialization\"}": 1,
			"nodes": 1, "world_size": 2, "local_world_size": 2,
		}},
		{"signal", "wait", "", 0, true, map[string]float64{
			"group_state{state=\"FAILED\"}": 1, "worker_exits_total{cause=\"stopped\"}": 2,
			"rendezvous": 1, "rank_assignment": 1, "worker_start": 1, "initialization": 1, "worker_stop": 1,
			"nodes": 1, "world_size": 2, "local_world_size": 2,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			if tt.stop {
				tt.arg = fifos(t, 2)
				ctx = terminated(ctx, func() { started(t, tt.arg, 2) })
			}
			j := newJob(t, tt.function, tt.arg, 2)
			if tt.function == "" {
				j.Spec.Entrypoint = "/no/such/program"
			}
			j.MaxRestarts = tt.max
			r := &metrics.Job{}
			j.Observers = append(j.Observers, r.Observe)
			_, _ = j.run(t, ctx)
			if diff := cmp.Diff(tt.want, scrape(t, r)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A host whose workers have not failed counts the job's restarts, and rounds that
// follow a change of hosts are no restarts. The rendezvous' events tell why.
func TestMetricsOfManyHosts(t *testing.T) {
	kept := map[string]*metrics.Job{}
	told := &rdzvSink{}
	l := newLab(t, abc, func(h *host) {
		h.MaxRestarts = 1
		kept[h.name] = &metrics.Job{}
		h.Observers = append(h.Observers, kept[h.name].Observe)
		if h.name == "a" {
			h.Observers = append(h.Observers, events.Observer(told))
		}
	})
	l.start("a", "b")
	w := l.all("a", "b")
	w["b"].tell(t, "boom")
	l.all("a", "b")
	l.start("c")
	for _, w := range l.all(abc...) {
		w.tell(t, "succeed")
	}
	l.succeeds(abc...)
	base := map[string]float64{
		"group_state{state=\"SUCCEEDED\"}": 1, "worker_exits_total{cause=\"success\"}": 1, "restarts_total": 1,
		"rendezvous": 1, "rank_assignment": 1, "worker_start": 1, "initialization": 1,
		"round": 2, "nodes": 3, "world_size": 3, "local_world_size": 1,
	}
	for name, more := range map[string]map[string]float64{
		"a": {"worker_exits_total{cause=\"stopped\"}": 2, "worker_stop": 2},
		"b": {"worker_exits_total{cause=\"stopped\"}": 1, "worker_exits_total{cause=\"exit_code\"}": 1, "worker_stop": 2},
		"c": {},
	} {
		want := map[string]float64{}
		for key, v := range base {
			want[key] = v
		}
		for key, v := range more {
			want[key] = v
		}
		if name != "c" {
			want["rejoins_total"], want["restart"] = 1, 2
			for _, key := range []string{"rendezvous", "rank_assignment", "worker_start", "initialization"} {
				want[key] = 3
			}
		}
		if diff := cmp.Diff(want, scrape(t, kept[name])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	want := []string{
		"INIT rendezvous.Next: joins the next round", "RUNNING rendezvous.Next: joined round 0 as node 0 of 2",
		"RUNNING rendezvous.Next: joins the next round", "RUNNING rendezvous.Next: joined round 1 as node 0 of 2",
		"RUNNING rendezvous.Changes: nodes waiting: c",
		"RUNNING rendezvous.Next: joins the next round", "RUNNING rendezvous.Next: joined round 2 as node 0 of 3",
	}
	got := told.lines()
	for i, line := range got {
		// b may have heard of c, and wait with it, before a hears.
		got[i] = strings.Replace(line, "waiting: b", "waiting: c", 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rendezvous of a (-want +got):\n%s", diff)
	}
	for _, e := range told.rdzv {
		if e.RunID != "job1" || e.Hostname != "a" || e.PID == 0 || strings.HasPrefix(e.Message, "joined") != (e.MasterEndpoint != "" && e.Rank != nil) {
			t.Errorf("%+v", e)
		}
	}
}

// An rdzvSink takes the rendezvous' events, too.
type rdzvSink struct {
	sink
	rdzv []events.RdzvEvent
}

func (s *rdzvSink) Record(e events.Line) {
	s.sink.Record(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := e.(events.RdzvEvent); ok {
		s.rdzv = append(s.rdzv, e)
	}
}

func (s *rdzvSink) lines() []string {
	var all []string
	for _, e := range s.rdzv {
		all = append(all, e.NodeState+" "+e.Name+": "+e.Message)
	}
	return all
}

// What happens in the rendezvous itself is told with its error.
func TestRdzvEventOfAFailure(t *testing.T) {
	j := newJob(t, "rank", "", 1)
	s := &rdzvSink{}
	j.Observers = records(s)
	if err := j.Rendezvous.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, t.Context()); err == nil {
		t.Fatal("no error")
	}
	last := s.rdzv[len(s.rdzv)-1]
	if last.NodeState != "FAILED" || last.ErrorTrace == "" || last.Rank != nil {
		t.Errorf("%+v", last)
	}
	if want := []string{"AGENT RENDEZVOUS", "AGENT FAILED"}; !slices.Equal(s.names(), want) {
		t.Errorf("events %v, want %v", s.names(), want)
	}
}
