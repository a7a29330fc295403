package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"regexp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/job/autopsy"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/timer"
)

// registerTimed registers workers that hang.
func registerTimed() {
	// In attempt 0 rank 1 sets itself a deadline, over what the argument names, and
	// lets it pass; its peers wait for it. Other attempts end at once.
	process.Register("miss", func(_ context.Context, over []byte) ([]byte, error) {
		if os.Getenv("TORCHELASTIC_RESTART_COUNT") != "0" {
			return []byte("done"), nil
		}
		var client timer.Client = &timer.FileClient{Path: os.Getenv("TORCHELASTIC_TIMER_FILE")}
		if string(over) == "socket" {
			client = &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
		}
		if os.Getenv("RANK") == "1" {
			if err := client.Acquire("step 7", time.Now().Add(10*time.Millisecond)); err != nil {
				return nil, err
			}
		}
		waitForSignal()
		return nil, nil
	})
	// Sets itself more deadlines than are shown.
	process.Register("set timers", func(_ context.Context, fifo []byte) ([]byte, error) {
		client := &timer.SocketClient{Path: os.Getenv(timer.EnvSocket)}
		for i := range 501 {
			if err := client.Acquire(fmt.Sprint(i), time.Now().Add(time.Hour)); err != nil {
				return nil, err
			}
		}
		if err := sayStarted(string(fifo)); err != nil {
			return nil, err
		}
		waitForSignal()
		return nil, nil
	})
	process.Register("hang", func(ctx context.Context, _ []byte) ([]byte, error) {
		if os.Getenv("TORCHELASTIC_RESTART_COUNT") != "0" {
			return []byte("done"), nil
		}
		waitForSignal()
		return nil, nil
	})
}

// A worker that misses its deadline is killed, with evidence beside its logs, and
// the group starts again.
func TestMissedDeadline(t *testing.T) {
	for _, over := range []string{"FIFO", "socket"} {
		t.Run(over, func(t *testing.T) {
			j := newJob(t, "miss", over, 2)
			j.MaxRestarts = 1
			j.FileTimer = over == "FIFO"
			j.AutopsyTimeout = 5 * time.Second
			j.sink.slow = "kill worker process"
			t.Setenv("TMPDIR", t.TempDir())
			r := j.mustRun(t)
			if r.IsFailed() || r.Restarts != 1 {
				t.Fatalf("result is %+v, want success after a restart", r)
			}
			report := readReport(t, filepath.Join(j.logDir, "attempt_0", "report.json"))
			if !strings.HasPrefix(report.Cause, "rank 1 ") || !strings.Contains(report.Cause, `missed a deadline: timer "step 7" ran out at `) {
				t.Errorf("cause: %s", report.Cause)
			}
			if _, err := os.Stat(report.AutopsyFile); err != nil || filepath.Dir(report.AutopsyFile) != filepath.Join(j.logDir, "attempt_0") {
				t.Errorf("evidence in %s: %v", report.AutopsyFile, err)
			}
			var want []string
			if over == "FIFO" {
				want = []string{"watchdog started", "timer expired", "kill worker process", "watchdog stopped", "watchdog started", "watchdog stopped"}
			} else {
				want = []string{"timer expired", "kill worker process"}
			}
			if d := cmp.Diff(want, j.sink.watchdog()); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
			if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*timer*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// watchdog returns the names of the watchdog's events.
func (s *sink) watchdog() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.events {
		if e.Watchdog != nil {
			names = append(names, e.Name())
		}
	}
	return names
}

type report struct {
	Cause       string `json:"cause"`
	Autopsy     string `json:"autopsy"`
	AutopsyFile string `json:"autopsy_file"`
	Failures    []struct {
		Rank int    `json:"rank"`
		Kind string `json:"kind"`
	} `json:"failures"`
}

func readReport(t *testing.T, path string) report {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// A worker may miss a deadline before the agent knows that it has started.
func TestMissedDeadlineAtStart(t *testing.T) {
	j := newJob(t, "miss", "FIFO", 2)
	j.MaxRestarts = 1
	j.FileTimer = true
	j.AutopsyTimeout = 5 * time.Second
	expired := make(chan struct{})
	var once sync.Once
	j.sink.hook = func(name string) {
		if name == "timer expired" {
			once.Do(func() { close(expired) })
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	j.Start = func(cfg process.Config) (agent.Group, error) {
		g, err := j.Supervisor.Start(cfg)
		<-expired
		if err == nil { // whoever kills the worker without knowing it does so now
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, _ = g.Wait(ctx)
		}
		return g, err
	}
	if r := j.mustRun(t); r.IsFailed() || r.Restarts != 1 {
		t.Fatalf("result is %+v, want success after a restart", r)
	}
	report := readReport(t, filepath.Join(j.logDir, "attempt_0", "report.json"))
	if !strings.Contains(report.Cause, `missed a deadline: timer "step 7" ran out at `) {
		t.Errorf("cause: %s", report.Cause)
	}
}

// Where a path is given workers find it, with and without a server.
func TestTimerFile(t *testing.T) {
	for _, serve := range []bool{true, false} {
		j := newJob(t, "env", "", 1)
		j.FileTimer, j.TimerFile = serve, filepath.Join(t.TempDir(), "fifo")
		r := j.mustRun(t)
		var env map[string]string
		if err := json.Unmarshal(r.ReturnValues[0], &env); err != nil {
			t.Fatal(err)
		}
		if got := env["TORCHELASTIC_TIMER_FILE"]; got != j.TimerFile {
			t.Errorf("served: %v: TORCHELASTIC_TIMER_FILE=%s, want %s", serve, got, j.TimerFile)
		}
		if _, err := os.Lstat(j.TimerFile); err == nil {
			t.Errorf("served: %v: the FIFO is left behind", serve)
		}
	}
}

// A path that cannot be served is said before anything starts.
func TestTimerFileRefused(t *testing.T) {
	j := newJob(t, "env", "", 1)
	j.FileTimer, j.TimerFile = true, filepath.Join(t.TempDir(), "no", "such", "directory")
	if _, err := j.run(t, t.Context()); err == nil || !strings.Contains(err.Error(), j.TimerFile) {
		t.Errorf("got %v", err)
	}
	if got := j.sink.names(); !slices.Equal(got, []string{"AGENT FAILED"}) {
		t.Errorf("events %q, want the agent's end", got)
	}
}

func TestHang(t *testing.T) {
	j := newJob(t, "hang", "", 2)
	j.MaxRestarts = 100                                                    // on a busy machine workers may do nothing for so long before they have begun
	j.HangTimeout, j.AutopsyTimeout = 2500*time.Millisecond, 5*time.Second // the race detector may make a worker sleep for a second at its end
	a, o := j.shown(t)
	r, err := a.Run(t.Context())
	if err != nil || r.IsFailed() || r.Restarts == 0 {
		t.Fatalf("result is %+v, %v, want success after a restart", r, err)
	}
	// The status page shows what the report of the last attempt that failed has.
	last := filepath.Join(j.logDir, fmt.Sprintf("attempt_%d", r.Restarts-1), "report.json")
	s := o.State(t.Context())
	if f := s.Failures[0]; f.Report != last || !strings.HasSuffix(f.Message, "\nwhat the workers did: "+readReport(t, last).Autopsy) {
		t.Errorf("the state shows %+v, want the report %s", f, last)
	}
	if s.Hosts[0].State != "SUCCEEDED" {
		t.Errorf("this host is %+v", s.Hosts[0])
	}
	report := readReport(t, filepath.Join(j.logDir, "attempt_0", "report.json"))
	if !strings.Contains(report.Cause, "missed a deadline: --hang-timeout: no output, no CPU time and no timer activity") {
		t.Errorf("cause: %s", report.Cause)
	}
	if report.AutopsyFile == "" {
		t.Error("no evidence")
	}
}

// onLog calls a function when a message with a prefix is logged.
type onLog struct {
	slog.Handler
	prefix string
	call   func()
}

func (h onLog) Enabled(context.Context, slog.Level) bool { return true }

func (h onLog) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.prefix) {
		h.call()
	}
	return nil
}

// Workers that hang may be left alone.
func TestHangNotify(t *testing.T) {
	j := newJob(t, "hang", "", 1)
	j.HangTimeout, j.HangNotify, j.AutopsyTimeout = 100*time.Millisecond, true, 5*time.Second
	ctx, cancel := context.WithCancelCause(t.Context())
	j.Logger = slog.New(onLog{slog.DiscardHandler, "what the workers did", func() { cancel(&process.SignalError{Signal: syscall.SIGTERM}) }})
	if r, err := j.run(t, ctx); r == nil || err == nil || r.Report != nil {
		t.Errorf("result is %+v, %v, want a job that was stopped", r, err)
	}
	if found, _ := filepath.Glob(filepath.Join(j.logDir, "attempt_0", "autopsy*.txt")); len(found) == 0 {
		t.Error("no evidence")
	}
}

// Evidence of workers that do not heed their signal is taken before they are killed.
func TestUnheeded(t *testing.T) {
	prefix := fifos(t, 1)
	j := newJob(t, "ignore", prefix, 1)
	j.ShutdownTimeout, j.AutopsyTimeout = 5*time.Second, 5*time.Second // half of the former is left for the evidence
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		started(t, prefix, 1)
		cancel(&process.SignalError{Signal: syscall.SIGTERM})
	}()
	if _, err := j.run(t, ctx); err == nil {
		t.Error("no error")
	}
	text, err := os.ReadFile(filepath.Join(j.logDir, "attempt_0", "autopsy.txt"))
	if err != nil || !strings.Contains(string(text), "workers do not end after the signal to stop") {
		t.Errorf("%v: %.200s", err, text)
	}
}

// Evidence of a hang that was only noted is not that of what workers are killed for later.
func TestUnheededAfterNote(t *testing.T) {
	prefix := fifos(t, 1)
	j := newJob(t, "ignore", prefix, 1)
	j.HangTimeout, j.HangNotify = 100*time.Millisecond, true
	j.ShutdownTimeout, j.AutopsyTimeout = 5*time.Second, time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	noted := make(chan struct{}, 9)
	j.Logger = slog.New(onLog{slog.DiscardHandler, "what the workers did", func() { noted <- struct{}{} }})
	go func() {
		started(t, prefix, 1)
		<-noted
		cancel(&process.SignalError{Signal: syscall.SIGTERM})
	}()
	if _, err := j.run(t, ctx); err == nil {
		t.Error("no error")
	}
	var all []byte
	files, _ := filepath.Glob(filepath.Join(j.logDir, "attempt_0", "autopsy*.txt"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		all = append(all, text...)
	}
	if !strings.Contains(string(all), "workers do not end after the signal to stop") {
		t.Errorf("%q: %s", files, all)
	}
}

// All timers are counted.
func TestManyTimers(t *testing.T) {
	prefix := fifos(t, 1)
	j := newJob(t, "set timers", prefix, 1)
	a, o := j.shown(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = a.Run(ctx)
	}()
	started(t, prefix, 1)
	if s := o.State(t.Context()); s.LiveTimers != 501 {
		t.Errorf("%d timers, want 501", s.LiveTimers)
	}
	cancel(&process.SignalError{Signal: syscall.SIGTERM})
	<-done
}

// What the agent shows of itself, at each step of a job with a restart.
func TestState(t *testing.T) {
	j := newJob(t, "fail until", "1", 2)
	j.MaxRestarts = 2
	a, o := j.shown(t)
	if s := o.State(t.Context()); len(s.Workers) != 0 || s.Job.RunID != "job1" || s.Job.MaxRestarts != 2 {
		t.Errorf("before the run: %+v", s)
	}
	if _, err := a.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := o.State(t.Context())
	if s.Job.State != "SUCCEEDED" || s.Job.Phase != "ended" || s.Job.Restarts != 1 || s.Job.WorldSize != 2 {
		t.Errorf("after the run: %+v", s.Job)
	}
	var what []string
	for _, m := range s.Timeline {
		what = append(what, fmt.Sprintf("%s %s: %s", m.Kind, m.Phase, m.What))
	}
	want := []string{
		"phase rendezvous: waiting for the hosts of the next round", "round assigning: round 0: 1 host", "phase running: 2 workers of 2 run here",
		"failure : rank 1 failed", "restart : restart 1 of 2",
		"phase rendezvous: waiting for the hosts of the next round", "round assigning: round 1: 1 host", "phase running: 2 workers of 2 run here",
		"end ended: the job has succeeded",
	}
	if d := cmp.Diff(want, what); d != "" {
		t.Errorf("timeline (-want +got):\n%s", d)
	}
	if len(s.Workers) != 2 || s.Workers[1].Exit == nil || s.Workers[1].State != "SUCCEEDED" || len(s.Failures) != 2 || !s.Failures[0].Root {
		t.Errorf("workers %+v\nfailures %+v", s.Workers, s.Failures)
	}
	if age := time.Since(a.Alive()); age > time.Minute {
		t.Errorf("alive %v ago", age)
	}
}

// An asleep store holds up who asks how many autopsies there were.
type asleep struct{ store.Store }

func (s *asleep) Add(ctx context.Context, key string, n int64) (int64, error) {
	if key == "muster/autopsies" {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	return s.Store.Add(ctx, key, n)
}

// Evidence of this host's workers is taken at once, also where the others cannot be asked.
func TestHangBesideStuckStore(t *testing.T) {
	seen := make(chan struct{})
	l := newLab(t, []string{"a", "b"}, func(h *host) {
		if h.name == "a" {
			h.HangTimeout, h.HangNotify, h.AutopsyTimeout = 100*time.Millisecond, true, 2*time.Second
			h.Logger = slog.New(&logged{Handler: h.Logger.Handler(), message: "what the workers did", once: &sync.Once{}, seen: seen})
		}
	})
	for _, name := range []string{"a", "b"} {
		l.hosts[name].node = l.node(name)
	}
	l.hosts["a"].node.wrap = func(s store.Store) store.Store { return &asleep{s} }
	l.start("a", "b")
	w := l.all("a", "b")
	<-seen
	for _, name := range []string{"a", "b"} {
		w[name].tell(t, "succeed")
	}
	l.succeeds("a", "b")
	log := l.hosts["a"].log.String()
	if !regexp.MustCompile(`what the workers did: rank 0 .*nothing known of the other hosts \(context deadline exceeded\)`).MatchString(log) {
		t.Errorf("log:\n%s", log)
	}
}

// What `muster dump` sees is no evidence of a failure that follows, nor is what was taken for an
// earlier one: this host's workers may do something else by then.
func TestEvidenceIsOfItsOwnFailure(t *testing.T) {
	var round store.Store
	l := newLab(t, []string{"a", "b"}, func(h *host) { h.AutopsyTimeout = time.Hour })
	l.hosts["a"].node = l.node("a")
	l.hosts["a"].node.wrap = func(s store.Store) store.Store { round = s; return s }
	l.start("a", "b")
	w := l.all("a", "b")
	ask := func(reason, number string) string {
		body, err := []byte(nil), error(nil)
		if number == "" {
			body, err = l.hosts["a"].agent.Autopsy(t.Context(), reason)
		} else {
			request := fmt.Sprintf(`{"number": %s, "reason": %q}`, number, reason)
			body, err = l.hosts["a"].node.answers["evidence"](t.Context(), []byte(request))
		}
		if err != nil {
			return err.Error()
		}
		var r autopsy.Report
		if err := json.Unmarshal(body, &r); err != nil {
			t.Fatal(err)
		}
		return r.Reason
	}
	for began := time.Now(); ask("muster dump on b", "") != "muster dump on b"; {
		if time.Since(began) > patience {
			t.Fatal("no evidence of workers that run")
		}
	}
	if got := ask("b: missed a deadline", "0"); got != "b: missed a deadline" {
		t.Errorf("after a dump, the evidence of a failure is that of %q", got)
	}
	if got := ask("muster dump on a", ""); got != "muster dump on a" {
		t.Errorf("a dump shows the evidence of %q", got)
	}
	if err := round.Set(t.Context(), "muster/autopsy/0/all", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ask("b: hang", "1") != "b: hang"; { // until a has read that
		if time.Since(began) > patience {
			t.Fatal("the evidence of a failure is that of the one before")
		}
	}
	for _, name := range []string{"a", "b"} {
		w[name].tell(t, "succeed")
	}
	l.succeeds("a", "b")
}
