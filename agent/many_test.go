package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

var abc = []string{"a", "b", "c"}

func restarts(n int) func(h *host) { return func(h *host) { h.MaxRestarts = n } }

func TestManySucceed(t *testing.T) {
	l := newLab(t, abc, func(h *host) {
		if h.name == "b" {
			h.Spec.LocalWorldSize = 2
		}
	})
	l.start(abc...)
	var got []hello
	for _, name := range []string{"a", "b", "b", "c"} {
		w := l.worker(name)
		got = append(got, w.hello)
		w.tell(t, "succeed")
	}
	l.succeeds(abc...)
	slices.SortFunc(got, func(a, b hello) int { return a.Rank - b.Rank })
	want := []hello{{"a", 0, 4, 0, 0, 3, 0}, {"b", 1, 4, 0, 1, 3, 0}, {"b", 2, 4, 1, 1, 3, 0}, {"c", 3, 4, 0, 2, 3, 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("workers (-want +got):\n%s", diff)
	}
}

func TestExitBarrier(t *testing.T) {
	l := newLab(t, abc, nil)
	l.start(abc...)
	w := l.all(abc...)
	for i, name := range abc {
		w[name].tell(t, "succeed")
		if i < 2 {
			l.awaitKey(fmt.Sprint("round.0/muster/done/", i))
		}
	}
	l.succeeds(abc...)
	for _, name := range abc {
		h := l.hosts[name]
		if h.result.Left || !h.node.shutdown {
			t.Errorf("%s: %+v, want the job ended, not left", name, h.result)
		}
		want := []string{"AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER SUCCEEDED", "AGENT SUCCEEDED"}
		if diff := cmp.Diff(want, h.sink.names()); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", name, diff)
		}
	}
	// Source: spec/rendezvous.md A.6.
	if n, err := l.store.Add(t.Context(), "round.0/torchelastic/agent/terminal_state/num_members", 0); n != 3 || err != nil {
		t.Errorf("%d agents were counted at the exit barrier, %v, want 3", n, err)
	}
}

// A failure on one host restarts all, with one count for the job.
func TestFailureRestartsAll(t *testing.T) {
	l := newLab(t, abc, restarts(1))
	l.start(abc...)
	w := l.all(abc...)
	w["b"].tell(t, "boom")
	w["a"].stopped()
	w["c"].stopped()
	w = l.all(abc...)
	for _, name := range abc {
		if w[name].Restarts != 1 || w[name].WorldSize != 3 {
			t.Errorf("%s: %+v, want restart 1 of 3 workers", name, w[name].hello)
		}
		w[name].tell(t, "succeed")
	}
	l.succeeds(abc...)
	for _, name := range abc {
		if h := l.hosts[name]; h.result.Restarts != 1 || !slices.Equal(h.attempts(), []string{"attempt_0", "attempt_1"}) {
			t.Errorf("%s: %+v, %v, want one restart", name, h.result, h.attempts())
		}
	}
}

// Hosts that fail at the same time use up one restart.
func TestFailuresAtOnceCountOnce(t *testing.T) {
	l := newLab(t, abc, restarts(5))
	l.start(abc...)
	for _, w := range l.all(abc...) {
		fmt.Fprintln(w.conn, "boom") // one that is slow has been stopped for another's failure by then
	}
	for name, w := range l.all(abc...) {
		if w.Restarts != 1 {
			t.Errorf("%s: restart %d, want 1", name, w.Restarts)
		}
		w.tell(t, "succeed")
	}
	l.succeeds(abc...)
}

// The others hear of a failure while the failed worker's peers still have their
// grace.
func TestFailureIsToldAtOnce(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, func(h *host) {
		h.MaxRestarts = 1
		if h.name == "b" {
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
	b[1].tell(t, "boom")
	a.stopped()
	b[0].tell(t, "end") // only now
	for _, name := range []string{"a", "b", "b"} {
		w := l.worker(name)
		if w.Restarts != 1 {
			t.Errorf("%+v, want restart 1", w.hello)
		}
		w.tell(t, "succeed")
	}
	l.succeeds("a", "b")
}

// A host that joins after a restart starts with the job's count.
func TestLateHostLearnsTheCount(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, restarts(2))
	l.start("a")
	l.worker("a").tell(t, "boom")
	if w := l.worker("a"); w.Restarts != 1 {
		t.Errorf("restart %d, want 1", w.Restarts)
	}
	l.start("b")
	for name, w := range l.all("a", "b") {
		if w.Restarts != 1 || w.GroupWorldSize != 2 {
			t.Errorf("%s: %+v, want restart 1 and two nodes", name, w.hello)
		}
		if name == "b" {
			w.tell(t, "boom")
		}
	}
	for name, w := range l.all("a", "b") {
		if w.Restarts != 2 {
			t.Errorf("%s: restart %d, want 2", name, w.Restarts)
		}
		fmt.Fprintln(w.conn, "boom") // one that is slow has been stopped for the other's failure by then
	}
	for _, name := range []string{"a", "b"} {
		if r, err := l.ended(name); err != nil || !r.IsFailed() || r.Restarts != 2 {
			t.Errorf("%s: %+v, %v, want failure after 2 restarts", name, r, err)
		}
	}
}

// Every host's report names the job's first failure.
func TestOneReport(t *testing.T) {
	l := newLab(t, abc, func(h *host) {
		if h.name == "b" {
			h.Spec.LocalWorldSize = 2
		}
	})
	l.start(abc...)
	w := l.all("a", "c")
	b := [2]*worker{}
	for range 2 {
		w := l.worker("b")
		b[w.LocalRank] = w
	}
	w["a"].tell(t, "succeed") // waits at the exit barrier
	l.awaitKey("round.0/muster/done/0")
	b[1].tell(t, "ValueError: boom")
	for _, name := range abc {
		r, err := l.ended(name)
		if err != nil || !r.IsFailed() || r.Report == nil {
			t.Fatalf("%s: %+v, %v, want failure with a report", name, r, err)
		}
		root := r.Report.Root()
		if root.Host != "b" || root.Rank != 2 || root.Cause != "ValueError: boom" || !strings.Contains(root.Traceback, "ValueError: boom") && root.Message != "ValueError: boom" {
			t.Errorf("%s: root is %+v", name, root)
		}
		var rest []string
		for _, f := range r.Report.Failures[1:] {
			rest = append(rest, fmt.Sprint(f.Host, f.Rank, " ", f.Kind))
		}
		slices.Sort(rest)
		if want := []string{"b1 stopped", "c3 stopped"}; !slices.Equal(rest, want) {
			t.Errorf("%s: the rest is %v, want %v", name, rest, want)
		}
		if len(r.Report.Silent) > 0 {
			t.Errorf("%s: silent hosts %v", name, r.Report.Silent)
		}
		var report struct {
			Host     string
			Failures []struct{ Host, Kind string }
		}
		text, err := os.ReadFile(r.ReportFile)
		if err == nil {
			err = json.Unmarshal(text, &report)
		}
		if err != nil || report.Host != name || len(report.Failures) != 3 || report.Failures[0].Host != "b" {
			t.Errorf("%s: report.json %s, %v", name, text, err)
		}
		wantOwn := map[string]int{"a": 0, "b": 2, "c": 1}[name]
		if len(r.Failures) != wantOwn {
			t.Errorf("%s: %d failures of its own, want %d", name, len(r.Failures), wantOwn)
		}
	}
}

// A report counts what a host had no room to say, on all hosts.
func TestReportLeftOut(t *testing.T) {
	l := newLab(t, abc, nil)
	l.hosts["b"].node = l.node("b")
	l.hosts["b"].node.wrap = func(s store.Store) store.Store { return &verbose{s} }
	l.start(abc...)
	l.all(abc...)["a"].tell(t, "boom")
	for _, name := range abc {
		if r, err := l.ended(name); err != nil || r.Report == nil || r.Report.LeftOut != 7 {
			t.Errorf("%s: %+v, %v, want 7 failures left out", name, r, err)
		}
	}
}

// A verbose store is of a host with seven failures too many.
type verbose struct{ store.Store }

func (v *verbose) Set(ctx context.Context, key string, value []byte) error {
	if strings.HasPrefix(key, "muster/failures/") {
		value = bytes.Replace(value, []byte(`"left_out":0`), []byte(`"left_out":7`), 1)
	}
	return v.Store.Set(ctx, key, value)
}

// Times of other hosts are told by this host's clock.
func TestReportClocks(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, nil)
	l.hosts["a"].node = l.node("a")
	l.hosts["b"].node = l.node("b")
	l.hosts["b"].node.offset = -time.Hour // its clock is an hour ahead of the job's
	l.start("a", "b")
	w := l.all("a", "b")
	w["b"].tell(t, "boom")
	now := time.Now()
	for name, want := range map[string]time.Time{"a": now.Add(-time.Hour), "b": now} {
		r, err := l.ended(name)
		if err != nil || r.Report == nil {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if root := r.Report.Root(); root.Host != "b" || root.FailedAt.Sub(want).Abs() > time.Minute {
			t.Errorf("%s: root of %s at %v, want b at about %v", name, root.Host, root.FailedAt, want)
		}
	}
}

// The job's report does not depend on a host that does not answer.
func TestReportWithoutAHost(t *testing.T) {
	l := newLab(t, abc, func(h *host) { h.PeerTimeout = 5 * time.Second }) // enough for the other one
	for _, name := range abc {
		l.hosts[name].node = l.node(name)
	}
	l.hosts["c"].node.wrap = func(s store.Store) store.Store { return &deaf{Store: s} }
	l.start(abc...)
	w := l.all(abc...)
	l.awaitKey("round.0/muster/agents/1")
	l.awaitKey("round.0/muster/agents/2")
	w["a"].tell(t, "boom")
	for _, name := range []string{"a", "b"} {
		r, err := l.ended(name)
		if err != nil || r.Report == nil || r.Report.Root().Host != "a" {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if want := []string{"c (node 2)"}; !slices.Equal(r.Report.Silent, want) {
			t.Errorf("%s: silent hosts %v, want %v", name, r.Report.Silent, want)
		}
	}
}

// A deaf store never tells of failures.
type deaf struct{ store.Store }

func (d *deaf) Get(ctx context.Context, key string) ([]byte, error) {
	if key == "muster/failed" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return d.Store.Get(ctx, key)
}

// A late store does not tell of a failure by itself, only who asks.
type late struct {
	store.Store
	waited atomic.Bool
}

func (l *late) Get(ctx context.Context, key string) ([]byte, error) {
	if key == "muster/failed" && !l.waited.Swap(true) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return l.Store.Get(ctx, key)
}

func (d *deaf) Check(ctx context.Context, keys ...string) (bool, error) {
	if keys[0] == "muster/failed" {
		return false, errors.New("deaf")
	}
	return d.Store.Check(ctx, keys...)
}

// Where the host that failed hands out no report, the others have its record.
func TestReportWithoutItsMaker(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, func(h *host) { h.PeerTimeout = 100 * time.Millisecond })
	l.hosts["a"].node = l.node("a")
	l.hosts["a"].node.wrap = func(s store.Store) store.Store { return &mute{Store: s} }
	l.start("a", "b")
	w := l.all("a", "b")
	w["a"].tell(t, "ValueError: boom")
	r, err := l.ended("b")
	if err != nil || r.Report == nil {
		t.Fatalf("b: %+v, %v", r, err)
	}
	if root := r.Report.Root(); root.Host != "a" || root.Cause != "ValueError: boom" || len(r.Report.Silent) != 1 {
		t.Errorf("root is %v, silent %v", root, r.Report.Silent)
	}
}

// A mute store takes no report.
type mute struct{ store.Store }

func (m *mute) Set(ctx context.Context, key string, value []byte) error {
	if key == "muster/report" {
		return errors.New("mute")
	}
	return m.Store.Set(ctx, key, value)
}

// Who joins, dies or leaves makes the others start again, and nothing is counted:
// max restarts is 0 here.
func TestMembershipChanges(t *testing.T) {
	tests := []struct {
		name    string
		first   []string // run at first
		happens func(l *lab)
		then    []string // run in the next round
		say     string
	}{
		{"a host joins", []string{"a", "b"}, func(l *lab) { l.start("c") }, abc, "level=WARN msg=\"other hosts join the job; stopping the workers for a new round, no restart is counted"},
		{"a host dies", abc, func(l *lab) { l.hosts["c"].node.lose() }, []string{"a", "b"}, "a node of the round is lost"},
		{"a host is told to stop", abc, func(l *lab) {
			l.hosts["c"].cancel(&process.SignalError{Signal: syscall.SIGTERM})
		}, []string{"a", "b"}, "a node of the round has left"},
		{"somebody wants new workers", abc, func(l *lab) {
			for l.hosts["b"].agent.Restart("c") != nil { // b may not have noted yet that its workers run
				runtime.Gosched()
			}
		}, abc, "muster restart on c asks for new workers; stopping the workers for a new round, no restart is counted"},
		{"this host is evicted", []string{"a"}, func(l *lab) {
			l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.Evicted, Node: "a", Rank: 0}
		}, []string{"a"}, "the other nodes count this host as lost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, abc, nil)
			l.start(tt.first...)
			l.all(tt.first...)
			tt.happens(l)
			for name, w := range l.all(tt.then...) {
				if w.Restarts != 0 || w.GroupWorldSize != len(tt.then) {
					t.Errorf("%s: %+v, want no restart, %d nodes", name, w.hello, len(tt.then))
				}
				w.tell(t, "succeed")
			}
			l.succeeds(tt.then...)
			h := l.hosts["a"]
			if want := []string{"attempt_0", "attempt_0.1"}; !slices.Equal(h.attempts(), want) {
				t.Errorf("attempts %v, want %v", h.attempts(), want)
			}
			if text := h.log.String(); !strings.Contains(text, tt.say) {
				t.Errorf("the log lacks %q:\n%s", tt.say, text)
			}
			if c := l.hosts["c"]; tt.name == "a host is told to stop" {
				r, err := l.ended("c")
				if _, ok := errors.AsType[*process.SignalError](err); !ok || !r.Left || !c.node.left {
					t.Errorf("c: %+v, %v, want that it left", r, err)
				}
			}
		})
	}
}

// A host that goes after its workers have succeeded is not missed.
func TestDoneHostGoes(t *testing.T) {
	for _, how := range []string{"dies", "leaves"} {
		t.Run(how, func(t *testing.T) {
			l := newLab(t, abc, nil)
			l.start(abc...)
			w := l.all(abc...)
			w["a"].tell(t, "succeed")
			w["c"].tell(t, "succeed")
			l.awaitKey("round.0/muster/done/0")
			l.awaitKey("round.0/muster/done/2")
			if how == "dies" {
				l.hosts["c"].node.lose()
			} else {
				l.hosts["c"].cancel(&process.SignalError{Signal: syscall.SIGTERM})
				if r, _ := l.ended("c"); !r.Left || !r.IsFailed() {
					t.Errorf("c: %+v, want that it left the job", r)
				}
			}
			w["b"].tell(t, "succeed")
			l.succeeds("a", "b")
			for _, name := range []string{"a", "b"} {
				if got := l.hosts[name].attempts(); len(got) != 1 {
					t.Errorf("%s: attempts %v, want one", name, got)
				}
			}
		})
	}
}

// What cuts the exit barrier short.
func TestExitBarrierCutShort(t *testing.T) {
	t.Run("by a failure with restarts left", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, restarts(1))
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, "succeed")
		l.awaitKey("round.0/muster/done/0")
		w["b"].tell(t, "boom")
		for _, w := range l.all("a", "b") {
			w.tell(t, "succeed")
		}
		l.succeeds("a", "b")
	})
	t.Run("by a host that dies", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, nil)
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, "succeed")
		l.awaitKey("round.0/muster/done/0")
		l.hosts["b"].node.lose()
		again := l.worker("a")
		if again.GroupWorldSize != 1 || again.Restarts != 0 {
			t.Errorf("%+v, want one node", again.hello)
		}
		again.tell(t, "succeed")
		l.succeeds("a")
	})
	t.Run("by the end of the rendezvous", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, nil)
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, "succeed")
		l.awaitKey("round.0/muster/done/0")
		l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.Closed, Node: "b", Rank: 1}
		l.succeeds("a")
	})
	t.Run("by a lost connection", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, func(h *host) { h.PeerTimeout = time.Millisecond })
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, "succeed")
		l.awaitKey("round.0/muster/done/0")
		l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.Disconnected, Rank: -1, Err: errors.New("gone")}
		l.succeeds("a")
		if r, _ := l.ended("a"); !r.Left {
			t.Errorf("%+v, want that the host left", r)
		}
	})
	t.Run("but not by the loss of a connection that comes with its end", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, nil)
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, "succeed")
		l.awaitKey("round.0/muster/done/0")
		l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.Disconnected, Rank: -1, Err: errors.New("gone")}
		w["b"].tell(t, "succeed")
		l.succeeds("a", "b")
		if r, _ := l.ended("a"); r.Left {
			t.Errorf("%+v, want that the job ended", r)
		}
	})
}

// A host that has waited long enough leaves the job to the others.
func TestExitBarrierTimesOut(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, func(h *host) {
		if h.name == "a" {
			h.ExitBarrierTimeout = time.Millisecond
		}
	})
	l.start("a", "b")
	w := l.all("a", "b")
	l.awaitKey("round.0/muster/agents/1")
	w["a"].tell(t, "succeed")
	l.succeeds("a")
	if h := l.hosts["a"]; !h.result.Left || !h.node.left || !strings.Contains(h.log.String(), `missing="b (node 1)"`) {
		t.Errorf("a: %+v, log:\n%s", h.result, h.log)
	}
	w["b"].tell(t, "succeed")
	l.succeeds("b")
	if got := l.hosts["b"].attempts(); len(got) != 1 {
		t.Errorf("b: attempts %v, want one", got)
	}
}

// One that the others need stays as long as one of them is there.
func TestExitBarrierTimesOutWhereOthersNeedThisHost(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", lost), func(t *testing.T) {
			stays := make(chan struct{})
			l := newLab(t, []string{"a", "b"}, func(h *host) {
				if h.name == "a" {
					h.ExitBarrierTimeout = time.Millisecond
					h.Logger = slog.New(&logged{slog.NewTextHandler(h.log, nil), "exit barrier: some nodes did not finish in time; the others need this host", &sync.Once{}, stays})
				}
			})
			l.hosts["a"].node = l.node("a")
			l.hosts["a"].node.serves = true
			l.start("a", "b")
			w := l.all("a", "b")
			l.awaitKey("round.0/muster/agents/1")
			w["a"].tell(t, "succeed")
			<-stays
			if lost {
				l.hosts["b"].node.lose()
			} else {
				w["b"].tell(t, "succeed")
			}
			l.succeeds("a")
			if h := l.hosts["a"]; h.result.Left != lost || len(h.attempts()) != 1 {
				t.Errorf("a: %+v, attempts %v, log:\n%s", h.result, h.attempts(), h.log)
			}
			if lost {
				w["b"].tell(t, "succeed")
			}
			l.succeeds("b")
		})
	}
}

func TestClosed(t *testing.T) {
	t.Run("while workers run", func(t *testing.T) {
		l := newLab(t, []string{"a"}, restarts(3))
		python := l.withPython()
		l.start("a")
		_, w := python.join(t), l.worker("a")
		l.mu.Lock()
		l.close(python)
		l.mu.Unlock()
		w.stopped()
		r, err := l.ended("a")
		if !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "python has ended the job") || !r.IsFailed() || r.Report != nil {
			t.Errorf("%+v, %v, want failure with who ended the job", r, err)
		}
	})
	t.Run("by one that has waited at the exit barrier", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		info, w := python.join(t), l.worker("a")
		arrive(t, info)
		l.mu.Lock()
		l.close(python)
		l.mu.Unlock()
		w.tell(t, "succeed")
		l.succeeds("a")
	})
	t.Run("while the host waits for a round", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		python.join(t)
		w := l.worker("a")
		l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.NodesWaiting, Node: "x", Rank: -1}
		w.stopped()
		for waiting := false; !waiting; {
			l.mu.Lock()
			if waiting = l.hosts["a"].node.joined != nil; waiting {
				l.close(python)
			}
			l.mu.Unlock()
		}
		if r, err := l.ended("a"); !errors.Is(err, rendezvous.ErrClosed) || !r.IsFailed() {
			t.Errorf("%+v, %v, want failure", r, err)
		}
	})
}

// An unranked store never tells which ranks a node has.
type unranked struct{ store.Store }

func (u *unranked) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasPrefix(key, "torchelastic/assigned_ranks/") {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return u.Store.Get(ctx, key)
}

// A host that is slow to learn its ranks hears why the job has ended meanwhile.
func TestFailureBeforeTheWorkersStart(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, nil)
	l.hosts["a"].node, l.hosts["b"].node = l.node("a"), l.node("b")
	l.hosts["b"].node.wrap = func(s store.Store) store.Store { return &unranked{s} }
	l.start("a", "b")
	l.worker("a").tell(t, "boom")
	for _, name := range []string{"a", "b"} {
		r, err := l.ended(name)
		if err != nil || !r.IsFailed() || r.Report.Root() == nil || r.Report.Root().Rank != 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// A slow store does not answer the first request that is about a failure in time.
type slow struct {
	store.Store
	asked atomic.Bool
}

func (s *slow) wait(ctx context.Context) error {
	if s.asked.Swap(true) {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *slow) CompareAndSet(ctx context.Context, key string, old, value []byte) ([]byte, error) {
	if key == "muster/failed" {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
	return s.Store.CompareAndSet(ctx, key, old, value)
}

// A failure that ends the job is told once more where the store has not taken it in time.
func TestSlowStore(t *testing.T) {
	for _, order := range []string{"boom", "exit 1"} { // told before the worker has ended, and after
		t.Run(order, func(t *testing.T) {
			l := newLab(t, []string{"a", "b"}, func(h *host) { h.PeerTimeout = time.Second })
			l.hosts["a"].node, l.hosts["b"].node = l.node("a"), l.node("b")
			l.hosts["a"].node.wrap = func(s store.Store) store.Store { return &slow{Store: s} }
			l.start("a", "b")
			l.all("a", "b")["a"].tell(t, order)
			for _, name := range []string{"a", "b"} {
				r, err := l.ended(name)
				if err != nil || !r.IsFailed() || r.Report.Root() == nil || r.Report.Root().Rank != 0 {
					t.Errorf("%s: %+v, %v", name, r, err)
				}
			}
		})
	}
}

// A cut-off store fails the first request that is about a failure, when it is told to.
type cutOff struct {
	store.Store
	once        sync.Once
	asked, fail chan struct{}
}

func (s *cutOff) CompareAndSet(ctx context.Context, key string, old, value []byte) (found []byte, err error) {
	if key == "muster/failed" {
		s.once.Do(func() {
			close(s.asked)
			<-s.fail
			err = store.ErrClosed
		})
	}
	if err != nil {
		return nil, err
	}
	return s.Store.CompareAndSet(ctx, key, old, value)
}

// Where the store has not taken a host's failure, and takes another host's meanwhile, that one's decides for both.
func TestAnotherFailureMeanwhile(t *testing.T) {
	for _, order := range []string{"boom", "exit 1"} { // told before the worker has ended, and after
		t.Run(order, func(t *testing.T) {
			l := newLab(t, []string{"a", "b"}, func(h *host) {
				if h.name == "b" {
					h.MaxRestarts = 1
				}
			})
			asked, fail := make(chan struct{}), make(chan struct{})
			l.hosts["a"].node, l.hosts["b"].node = l.node("a"), l.node("b")
			l.hosts["a"].node.wrap = func(s store.Store) store.Store {
				return &cutOff{Store: s, asked: asked, fail: fail}
			}
			l.start("a", "b")
			w, info := l.all("a", "b"), <-l.hosts["b"].node.rounds
			w["a"].tell(t, order)
			<-asked
			l.mu.Lock()
			l.hosts["a"].node.wrap = nil // in the next round
			l.mu.Unlock()
			w["b"].tell(t, "boom")
			if err := info.Store.Wait(t.Context(), "muster/failed"); err != nil {
				t.Fatal(err)
			}
			close(fail)
			for name, w := range l.all("a", "b") {
				if w.Restarts != 1 {
					t.Errorf("%s: %d restarts", name, w.Restarts)
				}
				w.tell(t, "succeed")
			}
			l.succeeds("a", "b")
		})
	}
}

// A sleepy store tells of a failure only who asks, and waits.
type sleepy struct{ late }

func (s *sleepy) Check(ctx context.Context, keys ...string) (bool, error) {
	select {
	case <-time.After(1500 * time.Millisecond):
		return s.late.Check(ctx, keys...)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Once the job has ended, the reason is worth a wait.
func TestSleepyStore(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, func(h *host) { h.PeerTimeout = time.Second })
	l.hosts["a"].node, l.hosts["b"].node = l.node("a"), l.node("b")
	l.hosts["b"].node.wrap = func(s store.Store) store.Store { return &sleepy{late{Store: s}} }
	l.start("a", "b")
	l.all("a", "b")["a"].tell(t, "boom")
	if r, err := l.ended("b"); err != nil || !r.IsFailed() || r.Report.Root() == nil || r.Report.Root().Rank != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A host that waits for a new round learns from the last one why there is none.
func TestEndedWhileWaiting(t *testing.T) {
	for _, tt := range []struct {
		name, record string
		want         func(*agent.Result, error) bool
	}{
		{"preempted", `{"node": 1, "rank": -1, "host": "p", "final": true, "signal": 15, "time": "2026-11-22T12:00:00Z", "cause": "c"}`, func(r *agent.Result, err error) bool {
			return err == nil && r.Preempted != nil && r.Preempted.Host == "p"
		}},
		{"failed", `{"node": 1, "rank": 1, "host": "p", "final": true, "cause": "c"}`, func(r *agent.Result, err error) bool {
			return err == nil && r.IsFailed() && r.Preempted == nil && !r.Left
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, []string{"a"}, func(h *host) { h.PeerTimeout = 100 * time.Millisecond })
			python := l.withPython()
			l.start("a")
			info, w := python.join(t), l.worker("a")
			l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.NodesWaiting, Node: "x", Rank: -1}
			w.stopped()
			if err := info.Store.Set(t.Context(), "muster/failed", []byte(tt.record)); err != nil {
				t.Fatal(err)
			}
			for waiting := false; !waiting; {
				l.mu.Lock()
				if waiting = l.hosts["a"].node.joined != nil; waiting {
					l.close(python)
				}
				l.mu.Unlock()
			}
			if r, err := l.ended("a"); !tt.want(r, err) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// A node that forges a record in another's name ends the job, but holds nobody up.
// A host that is told to stop the job while it waits for a new round tells the others why
// there is none.
func TestPreemptedWhileWaiting(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, func(h *host) {
		h.MaxRestarts, h.PreemptionSignals = 1, []syscall.Signal{syscall.SIGTERM}
	})
	python := l.withPython()
	l.start("a", "b")
	python.join(t)
	l.all("a", "b")["b"].tell(t, "boom")
	for waiting := false; !waiting; {
		l.mu.Lock()
		waiting = l.hosts["a"].node.joined != nil && l.hosts["b"].node.joined != nil
		l.mu.Unlock()
		runtime.Gosched()
	}
	l.hosts["a"].cancel(&process.SignalError{Signal: syscall.SIGTERM})
	for _, name := range []string{"a", "b"} {
		if r, err := l.ended(name); r == nil || r.Preempted == nil || r.Preempted.Host != "a" || r.Left {
			t.Errorf("%s: %+v, %v, want preempted by a", name, r, err)
		}
	}
}

func TestForgedRecord(t *testing.T) {
	l := newLab(t, []string{"a"}, func(h *host) { h.PeerTimeout = 100 * time.Millisecond })
	python := l.withPython()
	l.start("a")
	info, w := python.join(t), l.worker("a")
	if err := info.Store.Set(t.Context(), "muster/failed", []byte(`{"node": 0, "host": "a", "final": true, "cause": "forged"}`)); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.close(python)
	l.mu.Unlock()
	w.stopped()
	if r, err := l.ended("a"); err != nil || !r.IsFailed() {
		t.Errorf("%+v, %v, want failure", r, err)
	}
	if log := l.hosts["a"].log.String(); strings.Contains(log, "cannot read") {
		t.Errorf("log about a record without failures:\n%s", log)
	}
}

// withPython makes the nodes of host a, which assigns the ranks, and of an agent of
// TorchElastic.
func (l *lab) withPython() *node {
	l.hosts["a"].node = l.node("a")
	return l.node("python")
}

// join is an agent of TorchElastic that meets the others in a round, and has one
// worker.
func (n *node) join(t *testing.T) *rendezvous.Info {
	t.Helper()
	info, err := n.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"role": "default", "rank": %d, "local_world_size": 1}`, info.Rank)
	if err := info.Store.Set(t.Context(), fmt.Sprint("torchelastic/role_info/", info.Rank), []byte(text)); err != nil {
		t.Fatal(err)
	}
	return info
}

func arrive(t *testing.T, info *rendezvous.Info) {
	t.Helper()
	if _, err := info.Store.Add(t.Context(), "torchelastic/agent/terminal_state/num_members", 1); err != nil {
		t.Fatal(err)
	}
}

func TestDisconnected(t *testing.T) {
	l := newLab(t, []string{"a"}, restarts(3))
	l.start("a")
	w := l.worker("a")
	gone := errors.New("gone")
	l.hosts["a"].node.changes <- rendezvous.Change{Kind: rendezvous.Disconnected, Rank: -1, Err: gone}
	w.stopped()
	if r, err := l.ended("a"); !errors.Is(err, gone) || !r.IsFailed() || r.Report != nil {
		t.Errorf("%+v, %v, want failure because of %v", r, err, gone)
	}
}

// Workers that fail since they lost their peers are the consequence of something
// that this host will hear of.
func TestLostPeers(t *testing.T) {
	t.Run("of a host that died", func(t *testing.T) {
		l := newLab(t, abc, nil)
		l.start(abc...)
		w := l.all(abc...)
		w["a"].tell(t, lostPeer)
		w["b"].tell(t, lostPeer)
		w["a"].stopped()
		l.hosts["c"].node.lose()
		for name, w := range l.all("a", "b") {
			if w.Restarts != 0 || w.GroupWorldSize != 2 {
				t.Errorf("%s: %+v, want no restart", name, w.hello)
			}
			w.tell(t, "succeed")
		}
		l.succeeds("a", "b")
	})
	t.Run("of a host that failed", func(t *testing.T) {
		l := newLab(t, abc, nil)
		l.start(abc...)
		w := l.all(abc...)
		w["a"].tell(t, lostPeer)
		w["a"].stopped()
		w["b"].tell(t, "ValueError: boom")
		for _, name := range abc {
			r, err := l.ended(name)
			if err != nil || r.Report == nil || r.Report.Root().Host != "b" || r.Report.Root().Kind != "failed" {
				t.Errorf("%s: %+v, %v, want b's failure", name, r, err)
			}
		}
	})
	t.Run("and nobody knows why", func(t *testing.T) {
		l := newLab(t, []string{"a", "b"}, func(h *host) { h.MaxRestarts, h.PeerTimeout = 1, time.Millisecond })
		l.start("a", "b")
		w := l.all("a", "b")
		w["a"].tell(t, lostPeer)
		for _, w := range l.all("a", "b") {
			if w.Restarts != 1 {
				t.Errorf("restart %d, want 1", w.Restarts)
			}
			w.tell(t, "succeed")
		}
		l.succeeds("a", "b")
	})
}

// A worker may fail before another host's agent has said that it is one of ours.
func TestFailsBeforeOthersStart(t *testing.T) {
	var l *lab
	l = newLab(t, []string{"a", "b"}, func(h *host) {
		if h.Host == "b" {
			h.Start = func(cfg process.Config) (agent.Group, error) {
				l.awaitKey("round.0/muster/failed")
				return h.Supervisor.Start(cfg)
			}
		}
	})
	l.start("a", "b")
	l.worker("a").tell(t, "boom")
	for _, name := range []string{"a", "b"} {
		r, err := l.ended(name)
		if err != nil || r.Report == nil || r.Report.Root().Host != "a" || len(r.Report.Silent) > 0 {
			t.Errorf("%s: %+v, %v", name, r.Report, err)
		}
	}
}

// An agent of TorchElastic in the job knows no key of ours, and nothing waits for
// it.
func TestMixed(t *testing.T) {
	t.Run("ends", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		info, w := python.join(t), l.worker("a")
		if got := w.WorldSize; got != 2 {
			t.Errorf("world size %d, want 2", got)
		}
		w.tell(t, "succeed")
		// Its barrier. Source: spec/rendezvous.md A.6.
		if err := store.Barrier(t.Context(), info.Store, "torchelastic/agent/terminal_state", 2); err != nil {
			t.Error(err)
		}
		l.succeeds("a")
	})
	t.Run("fails", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		python.join(t)
		l.worker("a").tell(t, "boom")
		r, err := l.ended("a")
		if err != nil || r.Report == nil || r.Report.Root().Host != "a" {
			t.Fatalf("%+v, %v", r, err)
		}
		if want := []string{"node 1, not known to run muster"}; !slices.Equal(r.Report.Silent, want) {
			t.Errorf("silent: %v, want %v", r.Report.Silent, want)
		}
	})
	// It sends no keep-alives while it waits at the exit barrier (A.7 fault 4).
	t.Run("is evicted at the exit barrier", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		info, w := python.join(t), l.worker("a")
		arrive(t, info)
		python.lose()
		w.tell(t, "succeed")
		l.succeeds("a")
		if got := l.hosts["a"].attempts(); len(got) != 1 {
			t.Errorf("attempts %v, want one", got)
		}
	})
	t.Run("is evicted before", func(t *testing.T) {
		l := newLab(t, []string{"a"}, nil)
		python := l.withPython()
		l.start("a")
		python.join(t)
		l.worker("a")
		python.lose()
		if w := l.worker("a"); w.WorldSize != 1 {
			t.Errorf("%+v, want one worker", w.hello)
		} else {
			w.tell(t, "succeed")
		}
		l.succeeds("a")
	})
}

// A node that is lost while ranks are exchanged does not hold the others up.
func TestLostBeforeRanks(t *testing.T) {
	l := newLab(t, []string{"a", "b"}, nil)
	l.start("a", "b")
	l.all("a", "b")
	silent := l.node("silent")
	if _, err := silent.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent.lose()
	for _, w := range l.all("a", "b") {
		w.tell(t, "succeed")
	}
	l.succeeds("a", "b")
}

// Ranks that the rendezvous has assigned are used as they are.
func TestRanksOfTheRendezvous(t *testing.T) {
	l := newLab(t, []string{"a"}, nil)
	h := l.hosts["a"]
	h.node = l.node("a")
	h.node.ranks = &rendezvous.Ranks{Base: 5, WorldSize: 9, RoleBase: 3, RoleWorldSize: 4}
	l.start("a")
	w := l.worker("a")
	if w.Rank != 5 || w.WorldSize != 9 {
		t.Errorf("%+v, want rank 5 of 9", w.hello)
	}
	w.tell(t, "succeed")
	l.succeeds("a")
}

// One node has nobody to tell anything.
func TestOneNodeNeedsNoStore(t *testing.T) {
	l := newLab(t, []string{"a"}, nil)
	h := l.hosts["a"]
	h.node = l.node("a")
	h.node.wrap = func(store.Store) store.Store { return nil }
	l.start("a")
	l.worker("a").tell(t, "boom")
	if r, err := l.ended("a"); err != nil || !r.IsFailed() || r.Report.Root().Cause != "boom" {
		t.Errorf("%+v, %v, want failure", r, err)
	}
}

// A host that is asked to stop the job, which others do before, says that it was stopped.
func TestStopping(t *testing.T) {
	l := newLab(t, []string{"a"}, nil)
	other := l.node("b")
	l.start("a")
	for waiting := false; !waiting; {
		l.mu.Lock()
		if waiting = l.hosts["a"].node.joined != nil; waiting {
			l.hosts["a"].agent.Stopping()
			l.close(other)
		}
		l.mu.Unlock()
	}
	asked := &process.SignalError{Signal: syscall.SIGTERM}
	l.hosts["a"].cancel(asked)
	if _, err := l.ended("a"); !errors.Is(err, asked) {
		t.Errorf("error %v, want %v", err, asked)
	}
}

func TestNotAdmitted(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string // in the error; "" for success
	}{
		{"spare", rendezvous.ErrRedundant, ""},
		{"closed", rendezvous.ErrClosed, `the job with run ID "job1" has ended`},
		{"timeout", &rendezvous.TimeoutError{RunID: "job1", Phase: "join"}, "join timed out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, []string{"a"}, nil)
			h := l.hosts["a"]
			h.node = l.node("a")
			h.node.nextErr = tt.err
			l.start("a")
			r, err := l.ended("a")
			if tt.want == "" {
				if err != nil || r.IsFailed() || !r.Left {
					t.Errorf("%+v, %v, want success", r, err)
				}
			} else if !errors.Is(err, tt.err) && err.Error() != tt.err.Error() || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
