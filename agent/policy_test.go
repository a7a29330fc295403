package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/policy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/store"
)

// rules gives hosts a policy, and many restarts.
func rules(t *testing.T, text string) func(h *host) {
	t.Helper()
	p, err := policy.Parse([]byte(text), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return func(h *host) { h.Policy, h.MaxRestarts = p, 9 }
}

// An attemptSink keeps failed attempts, too.
type attemptSink struct {
	sink
	attempts []events.AttemptEvent
}

func (s *attemptSink) Record(e events.Line) {
	s.sink.Record(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := e.(events.AttemptEvent); ok {
		s.attempts = append(s.attempts, e)
	}
}

func (s *attemptSink) shown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, e := range s.attempts {
		rank := -1
		if e.Rank != nil {
			rank = *e.Rank
		}
		all = append(all, fmt.Sprintf("%s of %s, rank %d, exit code %d, stderr %q, restarts %d: %s", e.Cause, e.Host, rank, e.ExitCode, e.Stderr, e.Restarts, e.Decision))
	}
	return all
}

// A rule stops the job on all hosts, whose reports name it.
func TestPolicyStops(t *testing.T) {
	sinks := map[string]*attemptSink{}
	with := rules(t, "rules:\n- {name: three, match: {exit: 3}, action: stop}\n")
	l := newLab(t, abc, func(h *host) {
		with(h)
		sinks[h.name] = &attemptSink{}
		h.Observers = records(sinks[h.name])
	})
	l.start(abc...)
	w := l.all(abc...)
	w["b"].tell(t, "exit 4 once more")
	w = l.all(abc...)
	w["b"].tell(t, "exit 3 that is it")
	for _, name := range abc {
		r, err := l.ended(name)
		if err != nil || r.State != agent.Failed || r.Restarts != 1 || r.Left {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if r.Report == nil || r.Report.Root().ExitCode != 3 || r.Report.Decision != "stopped by rule three of p.yaml:2" {
			t.Errorf("%s: report is %+v", name, r.Report)
		}
	}
	want := []string{
		`exit code of b, rank 1, exit code 4, stderr "once more", restarts 0: retried by the default of p.yaml`,
		`exit code of b, rank 1, exit code 3, stderr "that is it", restarts 1: stopped by rule three of p.yaml:2`,
	}
	if diff := cmp.Diff(want, sinks["b"].shown()); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if got := sinks["a"].shown(); got != nil {
		t.Errorf("a host whose workers did not fail has attempts %q", got)
	}
}

// Failed attempts are recorded also where there is no policy.
func TestAttemptsWithoutPolicy(t *testing.T) {
	s := &attemptSink{}
	j := newJob(t, "fail until", "1", 2)
	j.MaxRestarts, j.Observers = 1, records(s)
	if r := j.mustRun(t); r.IsFailed() {
		t.Fatalf("%+v", r)
	}
	if len(s.attempts) != 1 || *s.attempts[0].Rank != 1 || s.attempts[0].Action != "" || s.attempts[0].MaxRestarts != 1 {
		t.Errorf("%+v", s.attempts)
	}
}

// A host that is drained leaves; the others continue without it and count no restart,
// whether they have a policy or not.
func TestPolicyDrains(t *testing.T) {
	with := rules(t, "rules:\n- {name: bad-gpu, match: {exit: 66}, action: drain}\n")
	l := newLab(t, abc, func(h *host) {
		if with(h); h.name == "c" {
			h.Policy = nil
		}
	})
	for _, name := range abc {
		l.hosts[name].node = l.node(name)
	}
	l.hosts["a"].node.wrap = func(s store.Store) store.Store { return &late{Store: s} }
	l.start(abc...)
	w := l.all(abc...)
	w["b"].tell(t, "exit 66 ECC error")
	r, err := l.ended("b")
	if err != nil || r.State != agent.Failed || !r.Left || !r.Drained || r.Report.Decision != "drained by rule bad-gpu of p.yaml:2" || r.Failures[1] == nil {
		t.Errorf("b: %+v, %v", r, err)
	}
	for _, name := range []string{"a", "c"} {
		w := l.worker(name)
		if w.Restarts != 0 || w.WorldSize != 2 {
			t.Errorf("%s: %+v, want two workers and no restart", name, w.hello)
		}
		w.tell(t, "succeed")
	}
	l.succeeds("a", "c")
	if log := l.hosts["a"].log.String(); !strings.Contains(log, "no restart is counted") || !strings.Contains(log, "drained by rule bad-gpu of p.yaml:2") {
		t.Errorf("log of a:\n%s", log)
	}
}

// Where a rule reads stderr, the others are told as soon as that is there, while the
// failed worker's peers still have their grace.
func TestPolicyDrainIsToldAtOnce(t *testing.T) {
	with := rules(t, "rules:\n- {match: {stderr: ECC error}, action: drain}\n")
	for _, order := range []string{"exit 4 ECC error", "exit 4 another"} {
		l := newLab(t, []string{"a", "b"}, func(h *host) {
			if with(h); h.name == "b" {
				h.Spec.LocalWorldSize = 2
			}
		})
		l.start("a", "b")
		a := l.worker("a")
		b := [2]*worker{}
		for range 2 {
			w := l.worker("b")
			b[w.LocalRank] = w
		}
		b[0].linger(t)
		b[1].tell(t, order)
		a.stopped()
		b[0].tell(t, "end") // only now
		if strings.HasSuffix(order, "another") {
			for range 2 {
				l.worker("b").tell(t, "succeed")
			}
		} else if r, err := l.ended("b"); err != nil || !r.Drained {
			t.Errorf("b: %+v, %v", r, err)
		}
		w := l.worker("a")
		if want := map[bool]int{true: 1}[strings.HasSuffix(order, "another")]; w.Restarts != want {
			t.Errorf("%s: %d restarts, want %d", order, w.Restarts, want)
		}
		w.tell(t, "succeed")
		l.succeeds("a")
	}
}

// A budget is the job's, whichever host has used it.
func TestPolicyBudgetOfAllHosts(t *testing.T) {
	l := newLab(t, abc, rules(t, "rules:\n- {name: four, match: {exit: 4}, action: retry, budget: {restarts: 2, window: 1h}}\n"))
	l.start(abc...)
	for _, name := range abc {
		l.all(abc...)[name].tell(t, "exit 4")
	}
	for _, name := range abc {
		r, err := l.ended(name)
		if err != nil || r.Restarts != 2 || r.Report.Decision != "stopped by rule four of p.yaml:2: its budget of 2 restarts in 1h is used up" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Steps that no heartbeat tells of, and files that do not change.
func TestPolicyNoProgress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "latest")
	l := newLab(t, []string{"a", "b"}, rules(t, "no_progress: {restarts: 1, file: "+file+"}\n"))
	l.start("a", "b")
	l.all("a", "b")["a"].tell(t, "exit 1")
	w := l.all("a", "b")
	if err := os.WriteFile(file, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	w["b"].tell(t, "exit 1") // there was progress
	l.all("a", "b")["b"].tell(t, "exit 1")
	for _, name := range []string{"a", "b"} {
		want := "stopped by the default of p.yaml: no progress in 1 restart: no change of " + file
		if r, err := l.ended(name); err != nil || r.Restarts != 2 || r.Report.Decision != want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Steps that heartbeats tell of.
func TestPolicyNoFurtherStep(t *testing.T) {
	with := rules(t, "no_progress: {restarts: 1, heartbeat: true}\n")
	s := &attemptSink{}
	l := newLab(t, []string{"a"}, func(h *host) {
		with(h)
		h.Observers = records(s)
	})
	l.start("a")
	for _, step := range []string{"5", "6", "6"} {
		l.worker("a").tell(t, "beat "+step)
	}
	const want = "stopped by the default of p.yaml: no progress in 1 restart: no heartbeat of a step after 6"
	if r, err := l.ended("a"); err != nil || r.Restarts != 2 || r.Report.Decision != want {
		t.Errorf("%+v, %v", r, err)
	}
	var steps []int64
	for _, e := range s.attempts {
		steps = append(steps, e.Step)
	}
	if diff := cmp.Diff([]int64{5, 6, 6}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// Lost hosts are replaced without a restart, until a rule has had enough.
func TestPolicyHostsLost(t *testing.T) {
	sinks := map[string]*attemptSink{}
	with := rules(t, "rules:\n- {name: hosts, match: {cause: host lost, host: '[cd]'}, action: retry, budget: {restarts: 1}}\n")
	names := []string{"a", "b", "c", "d"}
	l := newLab(t, names, func(h *host) {
		with(h)
		sinks[h.name] = &attemptSink{}
		h.Observers = records(sinks[h.name])
	})
	l.start(names...)
	l.all(names...)
	lose := func(name string) {
		h := l.hosts[name]
		h.node.lose()
		h.cancel(&process.SignalError{Signal: 9})
	}
	for i := range names {
		l.awaitKey(fmt.Sprint("round.0/muster/agents/", i))
	}
	lose("d")
	for name, w := range l.all("a", "b", "c") {
		if w.Restarts != 0 || w.WorldSize != 3 {
			t.Errorf("%s: %+v", name, w.hello)
		}
	}
	for i := range 3 {
		l.awaitKey(fmt.Sprint("round.1/muster/agents/", i))
	}
	lose("c")
	for _, name := range []string{"a", "b"} {
		r, err := l.ended(name)
		if err == nil || r == nil || r.State != agent.Failed || !strings.Contains(err.Error(), "stopped by rule hosts of p.yaml:2: its budget of 1 restart is used up") {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	first := `host lost of d, rank -1, exit code 0, stderr "", restarts 0: retried by rule hosts of p.yaml:2`
	if got := sinks["a"].shown(); len(got) == 0 || got[0] != first {
		t.Errorf("attempts of a: %q, want %q", got, first)
	}
}

// A rule may try again what cannot be started.
func TestPolicyNotStarted(t *testing.T) {
	j := newJob(t, "", "", 2)
	j.Spec.Entrypoint = filepath.Join(t.TempDir(), "program")
	j.MaxRestarts = 5
	p, err := policy.Parse([]byte("rules: [{name: nfs, match: {cause: not started}, action: retry, budget: {restarts: 2}}]"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j.Policy = p
	r := j.mustRun(t)
	if r.State != agent.Failed || r.Restarts != 2 || r.Report.Decision != "stopped by rule nfs of p.yaml:1: its budget of 2 restarts is used up" {
		t.Errorf("%+v", r)
	}
}

// What cannot continue without its only host is stopped instead of drained.
func TestPolicyDrainsNobody(t *testing.T) {
	j := newJob(t, "fail until", "9", 2)
	j.MaxRestarts = 5
	p, err := policy.Parse([]byte("default: {action: drain}"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j.Policy = p
	r := j.mustRun(t)
	if r.Drained || r.Left || r.Restarts != 0 || r.Report.Decision != "stopped by the default of p.yaml:1: this job cannot continue without the host" {
		t.Errorf("%+v", r)
	}
}

// logged is a handler that closes a channel at a message.
type logged struct {
	slog.Handler
	message string
	once    *sync.Once
	seen    chan struct{}
}

func (l *logged) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.message) {
		l.once.Do(func() { close(l.seen) })
	}
	return l.Handler.Handle(ctx, r)
}

// All hosts wait as long as the one says that has decided; signals end that, and its
// end on one host ends it on the others.
func TestPolicyBackOff(t *testing.T) {
	with := rules(t, "default: {action: retry, backoff: {initial: 5h}}")
	seen := map[string]chan struct{}{}
	l := newLab(t, []string{"a", "b"}, func(h *host) {
		with(h)
		seen[h.name] = make(chan struct{})
		h.Logger = slog.New(&logged{slog.NewTextHandler(h.log, nil), "waiting before the next round", &sync.Once{}, seen[h.name]})
	})
	l.start("a", "b")
	l.all("a", "b")["b"].tell(t, "exit 1")
	for _, name := range []string{"a", "b"} {
		select {
		case <-seen[name]:
		case <-time.After(patience):
			t.Fatalf("%s does not wait", name)
		}
	}
	l.hosts["a"].cancel(&process.SignalError{Signal: 15})
	if r, err := l.ended("a"); err == nil || r == nil || !r.Left {
		t.Errorf("a: %+v, %v", r, err)
	}
	if err := l.hosts["a"].node.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := l.ended("b"); err == nil || r == nil || !r.IsFailed() {
		t.Errorf("b: %+v, %v", r, err)
	}
}

// While it lasts the agent says what it waits for.
func TestPolicyBackOffIsShown(t *testing.T) {
	j := newJob(t, "fail until", "2", 2)
	j.MaxRestarts = 5
	p, err := policy.Parse([]byte("rules: [{name: slow, action: retry, backoff: {initial: 5h}}]"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j.Policy = p
	seen := make(chan struct{})
	j.Logger = slog.New(&logged{slog.NewTextHandler(io.Discard, nil), "waiting before the next round", &sync.Once{}, seen})
	a, o := j.shown(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	var r *agent.Result
	var running sync.WaitGroup
	running.Go(func() { r, err = a.Run(ctx) })
	select {
	case <-seen:
	case <-time.After(patience):
		t.Fatal("it does not wait")
	}
	s := o.State(t.Context())
	if !strings.HasPrefix(s.Job.WaitingFor, "the back-off of rule slow, until ") || s.Job.Phase != "restarting" || s.Job.Restarts != 1 {
		t.Errorf("%+v", s.Job)
	}
	cancel(&process.SignalError{Signal: 15})
	running.Wait()
	if _, ok := errors.AsType[*process.SignalError](err); !ok || r == nil || !r.Left {
		t.Errorf("%+v, %v", r, err)
	}
}

// A short one ends by itself. The timeline has it.
func TestPolicyBackOffEnds(t *testing.T) {
	j := newJob(t, "fail until", "2", 2)
	j.MaxRestarts = 5
	p, err := policy.Parse([]byte("default: {action: retry, backoff: {initial: 20ms, factor: 3}}"), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j.Policy = p
	a, o := j.shown(t)
	began := time.Now()
	if r, err := a.Run(t.Context()); err != nil || r.IsFailed() || r.Restarts != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if took := time.Since(began); took < 80*time.Millisecond {
		t.Errorf("it took %v, and should have waited 20 and 60 ms", took)
	}
	var waits []string
	for _, m := range o.State(t.Context()).Timeline {
		if strings.HasPrefix(m.What, "waiting") && strings.HasSuffix(m.What, "before the next round") {
			waits = append(waits, m.What+": "+m.Why)
		}
	}
	want := []string{
		"waiting 20ms before the next round: back-off of rule default of p.yaml:1",
		"waiting 60ms before the next round: back-off of rule default of p.yaml:1",
	}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
