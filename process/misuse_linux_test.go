package process_test

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/logs"
	"github.com/muster-run/muster/process"
)

// sinks are Logs of a caller's own, who knows no other ranks.
type sinks struct {
	of    []logs.Sink
	calls []int
}

func (s *sinks) Sink(localRank int) logs.Sink {
	s.calls = append(s.calls, localRank)
	return s.of[localRank]
}

func (s *sinks) Started() error { return nil }

// Each rank's Sink is asked for once, and no other's.
func TestOwnSinks(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	own := &sinks{of: []logs.Sink{{Stdout: null, Stderr: null}, {Stdout: null, Stderr: null}}}
	g, err := supervisor(t, process.SupervisorConfig{}).Start(process.Config{
		Entrypoint: "true", Args: map[int][]string{0: nil, 1: nil}, Envs: noEnvs(2), Logs: own,
	})
	if err != nil {
		t.Fatal(err)
	}
	if result, err := g.Wait(t.Context()); err != nil || result.IsFailed() {
		t.Errorf("%+v, %v", result, err)
	}
	if diff := cmp.Diff([]int{0, 1}, own.calls); diff != "" {
		t.Errorf("calls of Sink (-want +got):\n%s", diff)
	}
}

// Supervisor.Start has called Started; who calls it once more, and Finish twice, does no harm.
func TestAttemptUsedTwice(t *testing.T) {
	run, err := logs.New(logs.Config{Dir: t.TempDir(), RunID: "twice", Tee: logs.StdSpec{All: logs.StdAll},
		Stdout: &strings.Builder{}, Stderr: &strings.Builder{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close(false)
	a, err := run.Attempt(0, []logs.Worker{{LocalRank: 0}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := supervisor(t, process.SupervisorConfig{}).Start(process.Config{
		Entrypoint: "echo", Args: map[int][]string{0: {"hello"}}, Envs: noEnvs(1), Logs: a,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Started(); err != nil {
		t.Error(err)
	}
	if _, err := g.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if stats, err := a.Finish(t.Context()); err != nil || stats != (logs.Stats{}) {
			t.Errorf("Finish: %+v, %v", stats, err)
		}
	}
	if err := a.Started(); err != nil {
		t.Error(err)
	}
}

func TestNotifyContextStopsTwice(t *testing.T) {
	ctx, _, stop := process.NotifyContext(context.Background(), nil, syscall.SIGUSR2)
	stop()
	stop()
	if ctx.Err() == nil {
		t.Error("stop does not end the context")
	}
}

// stop ends what NotifyContext has started, and so does the example's end.
func TestNotifyContextLeavesNothing(t *testing.T) {
	signals := make(chan os.Signal, 1) // package signal has a goroutine for good
	signal.Notify(signals, syscall.SIGUSR2)
	signal.Stop(signals)
	for name, use := range map[string]func(*testing.T){
		"stop": func(t *testing.T) {
			_, _, stop := process.NotifyContext(context.Background(), nil, syscall.SIGUSR2)
			if n := labelled(t); n != 2 {
				t.Errorf("%d goroutines, want this one and that of NotifyContext", n)
			}
			stop()
		},
		"example": func(*testing.T) { ExampleGroup_Close() },
	} {
		t.Run(name, func(t *testing.T) {
			pprof.Do(t.Context(), pprof.Labels("of", t.Name()), func(context.Context) { use(t) })
			for deadline := time.Now().Add(testproc.Patience); labelled(t) > 0; runtime.Gosched() { // the last steps of one that has ended
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines are left", labelled(t))
				}
			}
		})
	}
}

// labelled counts the goroutines that have the test's label: that of whoever has started them.
func labelled(t *testing.T) (n int) {
	t.Helper()
	var profile strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	for _, stack := range strings.Split(profile.String(), "\n\n") {
		if count, _, ok := strings.Cut(stack, " @ "); ok && strings.Contains(stack, strconv.Quote(t.Name())) {
			many, err := strconv.Atoi(count[strings.LastIndex(count, "\n")+1:])
			if err != nil {
				t.Fatalf("%v in %s", err, stack)
			}
			n += many
		}
	}
	return n
}

// A worker is replaced without variables of its own.
func TestReplaceWithoutEnv(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	own := &sinks{of: []logs.Sink{{Stdout: null, Stderr: null, ErrorFile: t.TempDir() + "/error.json"},
		{Stdout: null, Stderr: null}}}
	g, err := supervisor(t, process.SupervisorConfig{}).Start(process.Config{
		Entrypoint: "sh", Args: map[int][]string{0: {"-c", "exit 1"}, 1: {"-c", "read line"}}, Envs: noEnvs(2), Logs: own,
		Apart: true, Stdin: never(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-g.Failed()
	for { // until nothing of the first is left
		if err = g.Replace(0, []string{"-c", "exit 0"}, nil); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	g.Close(syscall.SIGTERM, time.Minute)
	<-g.Done()
}

// never is an input that gives nothing.
func never(t *testing.T) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}

// What is closed, or nil in an interface, is an error that names it.
func TestClosedFiles(t *testing.T) {
	closed := never(t)
	closed.Close()
	one := map[int][]string{0: nil}
	for want, cfg := range map[string]process.Config{
		"stdin is closed": {Entrypoint: "true", Args: one, Envs: noEnvs(1), Stdin: closed},
		"extra files, local rank 0 has a closed file": {Entrypoint: "true", Args: one, Envs: noEnvs(1),
			ExtraFiles: map[int][]*os.File{0: {closed}}},
		"logs, local rank 0: a file of its Sink is closed": {Entrypoint: "true", Args: one, Envs: noEnvs(1),
			Logs: &sinks{of: []logs.Sink{{Stdout: closed, Stderr: closed}}}},
		"Logs is a nil *logs.Attempt": {Entrypoint: "true", Args: one, Envs: noEnvs(1), Logs: (*logs.Attempt)(nil)},
	} {
		_, err := supervisor(t, process.SupervisorConfig{}).Start(cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A value that is not a signal stops the workers as SIGTERM does.
func TestCloseWithoutSignal(t *testing.T) {
	g, err := supervisor(t, process.SupervisorConfig{}).Start(process.Config{
		Entrypoint: "sh", Args: map[int][]string{0: {"-c", "read line"}}, Envs: noEnvs(1), Stdin: never(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Close(99, time.Hour)
	if result, err := g.Wait(t.Context()); err != nil || result.Exits[0].StoppedBy != syscall.SIGTERM {
		t.Errorf("%+v, %v", result, err)
	}
}
