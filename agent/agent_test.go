package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/metrics"
	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store/tcpstore"
)

// The workers of these tests are functions of the test binary itself.
func TestMain(m *testing.M) {
	process.GuardMain()
	process.Register("rank", func(context.Context, []byte) ([]byte, error) {
		return []byte("rank " + os.Getenv("RANK")), nil
	})
	process.Register("env", func(context.Context, []byte) ([]byte, error) {
		env := map[string]string{}
		for _, entry := range os.Environ() {
			name, value, _ := strings.Cut(entry, "=")
			env[name] = value
		}
		return json.Marshal(env)
	})
	// Fails until the attempt that the argument names.
	process.Register("fail until", func(_ context.Context, arg []byte) ([]byte, error) {
		if attempt := os.Getenv("TORCHELASTIC_RESTART_COUNT"); attempt < string(arg) && os.Getenv("RANK") == "1" {
			return nil, errors.New("attempt " + attempt + " fails")
		} else if attempt < string(arg) {
			waitForSignal()
		}
		return []byte(os.Getenv("MASTER_PORT")), nil
	})
	// Meets in the store and says how many keys a newcomer finds there.
	process.Register("store", func(ctx context.Context, _ []byte) ([]byte, error) {
		client, err := tcpstore.Dial(ctx, tcpstore.ClientConfig{
			Addr: net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")), Timeout: patience})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		n, err := client.NumKeys(ctx)
		if err != nil {
			return nil, err
		}
		if err := client.Set(ctx, "left by attempt "+os.Getenv("TORCHELASTIC_RESTART_COUNT"), nil); err != nil {
			return nil, err
		}
		if os.Getenv("TORCHELASTIC_RESTART_COUNT") == "0" {
			return nil, errors.New("once more")
		}
		return fmt.Append(nil, n), nil
	})
	process.Register("obey", obey)
	process.Register("wait", func(_ context.Context, arg []byte) ([]byte, error) {
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGTERM, syscall.SIGINT)
		if err := sayStarted(string(arg)); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("got %v", <-got)
	})
	process.Register("ignore", func(_ context.Context, arg []byte) ([]byte, error) {
		signal.Ignore(syscall.SIGTERM)
		if err := sayStarted(string(arg)); err != nil {
			return nil, err
		}
		select {}
	})
	registerTimed()
	process.FuncMain()
	testproc.Prepare()
	os.Exit(m.Run())
}

func waitForSignal() {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	<-got
	os.Exit(143)
}

// A sink remembers events.
type sink struct {
	slow   string // the event with this name is slow to record; empty: none
	hook   func(name string)
	mu     sync.Mutex
	events []events.Event
}

func (s *sink) Record(l events.Line) {
	e, ok := l.(events.Event)
	if !ok {
		return
	}
	if s.slow != "" && e.Name() == s.slow {
		time.Sleep(time.Second) // so that what does not wait for it comes first
	}
	if s.hook != nil {
		s.hook(e.Name())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// records are the observers that record in a sink.
func records(s events.Sink) []func(agent.Event) { return []func(agent.Event){events.Observer(s)} }

// shown makes an agent whose State package health knows.
func (j *job) shown(t *testing.T) (*agent.Agent, *jobstate.Observer) {
	t.Helper()
	o := &jobstate.Observer{}
	j.Observers = append(j.Observers, o.Observe)
	a, err := agent.New(j.Config)
	if err != nil {
		t.Fatal(err)
	}
	o.Watch(a)
	return a, o
}

func (s *sink) names() []string {
	var names []string
	for _, e := range s.events {
		names = append(names, e.Source()+" "+e.State)
	}
	return names
}

// A job is what an Agent needs, all of it real.
type job struct {
	agent.Config
	sink   *sink
	logDir string
}

func newJob(t *testing.T, function, arg string, workers int) *job {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	handler, err := c10d.New(rendezvous.Spec{
		RunID: "job1", Logger: quiet,
		Endpoint: "localhost:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := process.NewSupervisor(process.SupervisorConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	run, err := logs.New(logs.Config{Dir: t.TempDir(), RunID: "job1", Stdout: null, Stderr: null, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(handler.Shutdown(context.Background()), supervisor.Close(), run.Close(false), null.Close()); err != nil {
			t.Error(err)
		}
	})
	j := &job{sink: &sink{}, logDir: run.Dir()}
	j.Config = agent.Config{
		Spec: agent.Spec{
			Role: "default", LocalWorldSize: workers, Func: function,
			Args: func(int, int) []string { return []string{arg} },
		},
		Rendezvous: handler, Supervisor: supervisor, Logs: run,
		Host: "host1", Options: agent.Options{ShutdownTimeout: 20 * time.Second},
		Observers: records(j.sink), Logger: quiet,
	}
	return j
}

func (j *job) run(t *testing.T, ctx context.Context) (*agent.Result, error) {
	t.Helper()
	a, err := agent.New(j.Config)
	if err != nil {
		t.Fatal(err)
	}
	return a.Run(ctx)
}

func (j *job) mustRun(t *testing.T) *agent.Result {
	t.Helper()
	r, err := j.run(t, t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What does not start leaves nothing to stop, however it is started, and what served the
// workers ends.
func TestNotStarted(t *testing.T) {
	j := newJob(t, "", "", 2)
	j.Spec.Entrypoint = filepath.Join(t.TempDir(), "program")
	j.Start = func(cfg process.Config) (agent.Group, error) { return j.Supervisor.Start(cfg) } // a nil *process.Group
	j.FileTimer = true
	t.Setenv("TMPDIR", t.TempDir())
	if r := j.mustRun(t); r.State != agent.Failed || r.Failures[0].StartError == "" {
		t.Errorf("%+v", r)
	}
	var got []string
	for _, e := range j.sink.events {
		if e.Watchdog != nil {
			got = append(got, e.Name())
		}
	}
	if want := []string{"watchdog started", "watchdog stopped"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A caller may start the workers its own way.
func TestOwnStart(t *testing.T) {
	j := newJob(t, "rank", "", 2)
	starts := 0
	j.Start = func(cfg process.Config) (agent.Group, error) {
		starts++
		for i := range cfg.Envs {
			cfg.Envs[i]["RANK"] = "1" + cfg.Envs[i]["RANK"]
		}
		return j.Supervisor.Start(cfg)
	}
	r := j.mustRun(t)
	want := map[int][]byte{0: []byte("rank 10"), 1: []byte("rank 11")}
	if diff := cmp.Diff(want, r.ReturnValues); diff != "" || starts != 1 {
		t.Errorf("%d starts, return values (-want +got):\n%s", starts, diff)
	}
}

// What Prepare is told before a round is what Start gets after it, except for what the round
// gives.
func TestPrepare(t *testing.T) {
	j := newJob(t, "fail until", "1", 2)
	j.MaxRestarts = 1
	j.Env = []string{"INHERITED=yes"}
	j.Spec.Env = func(localRank int) map[string]string { return map[string]string{"EXTRA": fmt.Sprint(localRank)} }
	prepared := make(chan func() process.Config, 2)
	j.Prepare = func(workers func() process.Config) <-chan struct{} { prepared <- workers; return nil }
	starts := 0
	j.Start = func(cfg process.Config) (agent.Group, error) {
		starts++
		if len(prepared) == 0 {
			t.Fatal("Start comes before Prepare")
		}
		ahead := (<-prepared)()
		if diff := cmp.Diff(cfg.Args, ahead.Args); diff != "" || ahead.Func != cfg.Func || !slices.Equal(ahead.Env, cfg.Env) {
			t.Errorf("Prepare got %+v, Start %+v", ahead, cfg)
		}
		rest := func(env map[string]string) map[string]string {
			env = maps.Clone(env)
			maps.DeleteFunc(env, func(name, _ string) bool { return agent.SetsVariable(name) })
			return env
		}
		for rank, env := range cfg.Envs {
			if diff := cmp.Diff(rest(env), rest(ahead.Envs[rank])); diff != "" || len(env) != len(ahead.Envs[rank]) {
				t.Errorf("variables of %d (-Start +Prepare):\n%s", rank, diff)
			}
		}
		return j.Supervisor.Start(cfg)
	}
	if r := j.mustRun(t); r.IsFailed() || starts != 2 {
		t.Errorf("%d starts, %+v", starts, r)
	}
}

// A host joins when all is prepared that Prepare has it wait for.
func TestPreparedBeforeItJoins(t *testing.T) {
	for _, live := range []bool{true, false} {
		j := newJob(t, "rank", "", 1)
		j.Live = live
		var ready atomic.Bool
		j.Prepare = func(func() process.Config) <-chan struct{} {
			done := make(chan struct{})
			time.AfterFunc(50*time.Millisecond, func() { ready.Store(true); close(done) })
			return done
		}
		j.Rendezvous = lateHandler{j.Rendezvous, func() {
			if !ready.Load() {
				t.Errorf("live %v: it joins before", live)
			}
		}}
		if r := j.mustRun(t); r.IsFailed() {
			t.Errorf("live %v: %+v", live, r)
		}
	}
}

// A lateHandler calls joins before each round.
type lateHandler struct {
	rendezvous.Handler
	joins func()
}

func (h lateHandler) Next(ctx context.Context) (*rendezvous.Info, error) {
	h.joins()
	return h.Handler.Next(ctx)
}

func TestSuccess(t *testing.T) {
	j := newJob(t, "rank", "", 2)
	counts := counter{}
	j.Observers = append(j.Observers, metrics.Observer(counts))
	r := j.mustRun(t)
	if r.IsFailed() || r.State != agent.Succeeded || r.Report != nil {
		t.Errorf("result is %+v", r)
	}
	want := map[int][]byte{0: []byte("rank 0"), 1: []byte("rank 1")}
	if diff := cmp.Diff(want, r.ReturnValues); diff != "" {
		t.Errorf("return values (-want +got):\n%s", diff)
	}
	wantEvents := []string{"AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER START",
		"WORKER SUCCEEDED", "WORKER SUCCEEDED", "AGENT SUCCEEDED"}
	if diff := cmp.Diff(wantEvents, j.sink.names()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	// Source: golden/metrics/success.txt.
	for name, want := range map[string]int64{
		"SimpleElasticAgent.run.success": 1, "LocalElasticAgent._start_workers.success": 1,
		"workers.default.remaining_restarts": 0, "workers.default.succeeded": 1,
		"workers.default.flakiness": 0, "workers.default.run_success_no_retries": 1,
	} {
		if got, ok := counts[name]; !ok || got != want {
			t.Errorf("metric %s is %d (%v), want %d", name, got, ok, want)
		}
	}
}

// A counter remembers the last value of every metric.
type counter map[string]int64

func (c counter) Emit(m metrics.Metric) { c[m.Name] = m.Value }

// Source: spec/launcher.md §5.
func TestWorkerEnvironment(t *testing.T) {
	j := newJob(t, "env", "", 2)
	j.Env = []string{"INHERITED=yes", "LOCAL_RANK=of another job"}
	j.Spec.Role = "trainer"
	j.MaxRestarts = 3
	j.NoCollectives = true
	j.Spec.Env = func(localRank int) map[string]string { return map[string]string{"EXTRA": fmt.Sprint(localRank)} }
	r := j.mustRun(t)
	if r.IsFailed() {
		t.Fatalf("failed: %v", r.Report.Root())
	}
	var got map[string]string
	if err := json.Unmarshal(r.ReturnValues[1], &got); err != nil {
		t.Fatal(err)
	}
	if port := got["MASTER_PORT"]; port == "" || port == "0" {
		t.Errorf("MASTER_PORT=%s", port)
	}
	if path := got["MUSTER_TIMER_SOCKET"]; path == "" {
		t.Error("no MUSTER_TIMER_SOCKET")
	}
	delete(got, "MASTER_PORT")
	delete(got, "MUSTER_TIMER_SOCKET")
	want := map[string]string{
		"INHERITED": "yes", "EXTRA": "1",
		"LOCAL_RANK": "1", "RANK": "1", "GROUP_RANK": "0", "ROLE_RANK": "1", "ROLE_NAME": "trainer",
		"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2",
		"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3",
		"TORCHELASTIC_RUN_ID": "job1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
		"TORCHELASTIC_ERROR_FILE": filepath.Join(j.logDir, "attempt_0", "1", "error.json"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestRestart(t *testing.T) {
	j := newJob(t, "fail until", "2", 2)
	j.MaxRestarts = 3
	var said bytes.Buffer
	j.Host, j.Logger = "", slog.New(slog.NewTextHandler(&said, nil))
	var about agent.Job
	j.Observers = append(j.Observers, func(e agent.Event) { about = *e.Job })
	r := j.mustRun(t)
	if r.IsFailed() || r.Restarts != 2 {
		t.Errorf("result is %+v, want success after 2 restarts", r)
	}
	if name, err := os.Hostname(); err != nil || about.Host != name || about.Title != "fail until" {
		t.Errorf("the job is %+v, want the defaults %q and the function's name", about, name)
	}
	if n := strings.Count(said.String(), `level=INFO msg="workers failed" rank=1 local_rank=1 host=`+about.Host); n != 2 {
		t.Errorf("the log says %d times that workers failed: %s", n, &said)
	}
	for n := range 2 {
		if _, err := os.Stat(filepath.Join(j.logDir, fmt.Sprint("attempt_", n), "report.json")); err != nil {
			t.Errorf("attempt %d: %v", n, err)
		}
	}
}

// The report replaces a link that somebody has put in its way, and does not follow it.
func TestReportFollowsNoLink(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := newJob(t, "fail until", "9", 2)
	j.Start = func(cfg process.Config) (agent.Group, error) {
		for _, name := range []string{".report.json", "report.json"} {
			if err := os.Symlink(victim, filepath.Join(j.logDir, "attempt_0", name)); err != nil {
				t.Error(err)
			}
		}
		return j.Supervisor.Start(cfg)
	}
	r := j.mustRun(t)
	if text, err := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the victim holds %q, %v", text, err)
	}
	if info, err := os.Lstat(r.ReportFile); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the report is %v, %v", info, err)
	}
}

func TestRestartsUsedUp(t *testing.T) {
	j := newJob(t, "fail until", "9", 2)
	j.MaxRestarts = 1
	r := j.mustRun(t)
	if r.State != agent.Failed || r.Restarts != 1 {
		t.Errorf("result is %+v, want failure after 1 restart", r)
	}
	root := r.Report.Root()
	if root.Rank != 1 || !strings.Contains(root.Cause, "attempt 1 fails") {
		t.Errorf("root cause is rank %d: %s", root.Rank, root.Cause)
	}
	if f := r.Failures[0]; f == nil || f.StoppedBy != failure.Signal(syscall.SIGTERM) {
		t.Errorf("rank 0 is %+v, want stopped by SIGTERM", f)
	}
	var report map[string]any
	text, err := os.ReadFile(r.ReportFile)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil || r.ReportFile != filepath.Join(j.logDir, "attempt_1", "report.json") {
		t.Errorf("report file %s: %v", r.ReportFile, err)
	}
	names := j.sink.names()
	if want := []string{"WORKER FAILED", "WORKER FAILED", "AGENT FAILED"}; !slices.Equal(names[len(names)-3:], want) {
		t.Errorf("last events are %v, want %v", names[len(names)-3:], want)
	}
}

// Workers of a new attempt find nothing of the one before. (D1)
func TestEveryAttemptHasAFreshStore(t *testing.T) {
	j := newJob(t, "store", "", 1)
	j.MaxRestarts = 1
	r := j.mustRun(t)
	if r.IsFailed() {
		t.Fatalf("failed: %v", r.Report.Root())
	}
	if got := string(r.ReturnValues[0]); got != "0" {
		t.Errorf("the second attempt found %s keys, want 0", got)
	}
}

func TestCannotStart(t *testing.T) {
	j := newJob(t, "", "", 2)
	j.Spec.Entrypoint = "/no/such/program"
	j.MaxRestarts = 5
	r := j.mustRun(t)
	if r.State != agent.Failed || r.Restarts != 0 {
		t.Errorf("result is %+v, want failure without a restart", r)
	}
	if cause := r.Report.Root().Cause; !strings.Contains(cause, "/no/such/program") {
		t.Errorf("cause is %q", cause)
	}
}

// fifos makes a FIFO for each worker, over which it says that it runs, and
// returns the prefix of their names.
func fifos(t *testing.T, workers int) string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "up")
	for rank := range workers {
		if err := syscall.Mkfifo(fmt.Sprint(prefix, rank), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return prefix
}

func sayStarted(prefix string) error {
	fifo, err := os.OpenFile(prefix+os.Getenv("RANK"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return fifo.Close()
}

// started waits until every worker has said that it runs.
func started(t *testing.T, prefix string, workers int) {
	for rank := range workers {
		fifo, err := os.Open(fmt.Sprint(prefix, rank))
		if err != nil {
			t.Error(err)
			return
		}
		// To its end, so that the next call cannot meet the same worker again.
		_, _ = io.ReadAll(fifo)
		fifo.Close()
	}
}

func TestSignal(t *testing.T) {
	prefix := fifos(t, 2)
	j := newJob(t, "wait", prefix, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		started(t, prefix, 2)
		cancel(&process.SignalError{Signal: syscall.SIGINT})
	}()
	r, err := j.run(t, ctx)
	var sig *process.SignalError
	if !errors.As(err, &sig) || sig.Signal != syscall.SIGINT {
		t.Errorf("Run: %v, want the signal", err)
	}
	if r == nil || !r.IsFailed() || r.Report != nil {
		t.Errorf("result is %+v, want a failure without a report", r)
	}
}

// A second signal cuts the grace of workers that do not want to go.
func TestHurry(t *testing.T) {
	prefix := fifos(t, 2)
	j := newJob(t, "ignore", prefix, 2)
	j.ShutdownTimeout = time.Hour
	hurry := make(chan struct{})
	j.Hurry = hurry
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		started(t, prefix, 2)
		cancel(&process.SignalError{Signal: syscall.SIGTERM})
		close(hurry)
	}()
	if _, err := j.run(t, ctx); err == nil {
		t.Error("Run returned no error")
	}
}

func TestSignalBeforeTheRendezvous(t *testing.T) {
	j := newJob(t, "rank", "", 1)
	j.Rendezvous, j.PreemptionSignals = stuck{j.Rendezvous}, []syscall.Signal{syscall.SIGTERM}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&process.SignalError{Signal: syscall.SIGTERM})
	r, err := j.run(t, ctx)
	var sig *process.SignalError
	if !errors.As(err, &sig) || r.Preempted == nil || !r.Left {
		t.Errorf("Run: %+v, %v, want the signal, and the job left to others", r, err)
	}
	if names := j.sink.names(); !slices.Equal(names, []string{"AGENT RENDEZVOUS", "AGENT FAILED"}) {
		t.Errorf("events are %v", names)
	}
}

// A stuck rendezvous waits for nodes that never come.
type stuck struct{ rendezvous.Handler }

func (stuck) Next(ctx context.Context) (*rendezvous.Info, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Nodes that wait to be admitted make the group start again, and no restart is
// counted.
func TestNodesWaiting(t *testing.T) {
	prefix := fifos(t, 1)
	j := newJob(t, "wait", prefix, 1)
	changes := make(chan rendezvous.Change)
	j.Rendezvous = &growing{Handler: j.Rendezvous, changes: changes}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		started(t, prefix, 1)
		changes <- rendezvous.Change{Kind: rendezvous.NodesWaiting, Rank: -1}
		started(t, prefix, 1)
		cancel(&process.SignalError{Signal: syscall.SIGTERM})
	}()
	r, err := j.run(t, ctx)
	if err == nil || r.Restarts != 0 {
		t.Errorf("Run: %+v, %v, want the signal and no restart", r, err)
	}
	for _, dir := range []string{"attempt_0", "attempt_0.1"} {
		if _, err := os.Stat(filepath.Join(j.logDir, dir)); err != nil {
			t.Error(err)
		}
	}
}

type growing struct {
	rendezvous.Handler
	changes chan rendezvous.Change
}

func (g *growing) Changes() <-chan rendezvous.Change { return g.changes }

func TestNewReportsEveryProblem(t *testing.T) {
	_, err := agent.New(agent.Config{Options: agent.Options{MaxRestarts: -1}, Spec: agent.Spec{Entrypoint: "a", Func: "b"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"local world size is 0", "max restarts is -1", "not both", "must be set"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}

// NCCL's errors end a worker unless the environment says something else.
func TestAsyncErrors(t *testing.T) {
	j := newJob(t, "", "", 1)
	j.Spec.Entrypoint = "/bin/sh"
	j.Spec.Args = func(int, int) []string { return []string{"-c", `test "$TORCH_NCCL_ASYNC_ERROR_HANDLING" = 1`} }
	if r := j.mustRun(t); r.IsFailed() {
		t.Error(r.Err())
	}
}
