package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-run/muster/logs"
)

// Std says which of a worker's output streams something applies to; see
// logs.Std.
type Std = logs.Std

// The values of Std.
const (
	StdNone = logs.StdNone
	StdOut  = logs.StdOut
	StdErr  = logs.StdErr
	StdAll  = logs.StdAll
)

// ParseStd reads the text of --redirects and --tee; see logs.ParseStd.
func ParseStd(text string) (logs.StdSpec, error) { return logs.ParseStd(text) }

// ToMap returns the Std of each of n local ranks.
// Source: to_map in multiprocessing/api.py.
func ToMap(spec logs.StdSpec, n int) map[int]Std { return spec.ToMap(n) }

const (
	// DefaultGrace is torchrun's time between a stop signal and SIGKILL.
	DefaultGrace = 30 * time.Second
	// DefaultLeftoverGrace is how long processes that a worker left behind have
	// between SIGTERM and SIGKILL.
	DefaultLeftoverGrace = 2 * time.Second
	// killGrace is the least time that a process has to disappear after
	// SIGKILL before it counts as stuck in the kernel.
	killGrace = 5 * time.Second
)

// Config describes one group of workers. The keys of Args and Envs are the local
// ranks 0 … n-1, every one of them.
type Config struct {
	// Name is the workers' role, for messages.
	Name string
	// Entrypoint is the program; without a slash it is looked up in the
	// worker's PATH.
	Entrypoint string
	// Func is the name of a registered function to run instead of a program.
	Func string
	// Args are the arguments after the program's name. A function gets Args[i][0].
	Args map[int][]string
	// Envs are variables on top of Env.
	Envs map[int]map[string]string
	// Env is the environment that workers inherit; nil means the program's own.
	Env []string
	// Logs says where output goes. Nil: to the program's own stdout and stderr.
	// Start calls its Started, also when it fails.
	Logs *logs.Attempt
	// CPUs are the CPUs that a worker may use. Absent means as the program.
	CPUs map[int][]int
	// Grace is the time between SIGTERM and SIGKILL when the group stops the
	// peers of a failed worker. Zero kills at once.
	Grace time.Duration
	// LeftoverGrace is the same for processes that a worker left behind; at most
	// Grace. Zero means DefaultLeftoverGrace.
	LeftoverGrace time.Duration
	// UninterruptibleTimeout is how long a worker may be in uninterruptible sleep
	// (state D) before the group is stopped as wedged. Zero turns this off.
	UninterruptibleTimeout time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Exit says how one worker ended.
// Source: ProcessFailure and RunProcsResult.
type Exit struct {
	LocalRank, PID int
	// Code is 0 … 255, or -N if signal N ended the worker.
	Code       int
	CoreDumped bool
	// Time is when the exit was seen.
	Time time.Time
	// StoppedBy is the signal that the group had sent to the worker before it
	// ended; zero if it ended by itself.
	StoppedBy syscall.Signal
	// OOMKilled holds the evidence that the kernel killed the worker for lack of
	// memory; empty otherwise.
	OOMKilled string
	// Abandoned is set for a worker that did not end after SIGKILL: where in the
	// kernel it waits.
	Abandoned string
	// ErrorFile is the worker's TORCHELASTIC_ERROR_FILE, which may not exist.
	ErrorFile string
	// Value is what a function worker returned, Err its error or panic.
	Value []byte
	Err   error
}

// Result is how a group ended.
// Source: RunProcsResult in multiprocessing/api.py.
type Result struct {
	// Exits holds every worker's end, Failures those that did not exit 0, by
	// local rank.
	Exits, Failures map[int]Exit
	// Stdouts and Stderrs are the workers' log files; empty where there is none.
	Stdouts, Stderrs map[int]string
	// Uninterruptible says that a worker is or was stuck in the kernel, so that
	// the host may not be fit for another attempt.
	Uninterruptible bool
}

// IsFailed says whether any worker failed.
func (r *Result) IsFailed() bool { return len(r.Failures) > 0 }

// A SignalError says that the program was told to stop by a signal.
// Source: SignalException in multiprocessing/api.py.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string {
	return fmt.Sprintf("received signal %s (%d)", SignalName(e.Signal), int(e.Signal))
}

// A StartError says which worker could not be started. Those with lower ranks
// have been stopped again.
type StartError struct {
	LocalRank int
	Path      string // the program
	Err       error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start worker %d: %s: %v", e.LocalRank, e.Path, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }

// ErrClosed is returned by Start on a closed Supervisor.
var ErrClosed = errors.New("process: supervisor is closed")

// validate reports everything that is wrong with cfg.
func (cfg *Config) validate() error {
	var errs []error
	n := len(cfg.Args)
	check := func(name string, got []int) {
		want := make([]int, n)
		for i := range want {
			want[i] = i
		}
		if !slices.Equal(got, want) {
			errs = append(errs, fmt.Errorf("%s, local rank mapping mismatch, expected: %s, actual: %s", name, set(want), set(got)))
		}
	}
	check("args", slices.Sorted(maps.Keys(cfg.Args)))
	check("envs", slices.Sorted(maps.Keys(cfg.Envs)))
	for i := range cfg.CPUs {
		if i < 0 || i >= n {
			errs = append(errs, fmt.Errorf("CPUs: local rank %d is not one of the %d workers", i, n))
		}
	}
	if (cfg.Entrypoint == "") == (cfg.Func == "") {
		errs = append(errs, errors.New("a worker needs an entrypoint or a function, and not both"))
	}
	for _, rank := range slices.Sorted(maps.Keys(cfg.Envs)) {
		for name, value := range cfg.Envs[rank] {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
				errs = append(errs, fmt.Errorf("envs, local rank %d: %q=%q cannot be an environment variable", rank, name, value))
			}
		}
		for _, arg := range cfg.Args[rank] {
			if strings.Contains(arg, "\x00") {
				errs = append(errs, fmt.Errorf("args, local rank %d: %q holds a NUL byte", rank, arg))
			}
		}
	}
	if cfg.Grace < 0 || cfg.LeftoverGrace < 0 || cfg.UninterruptibleTimeout < 0 {
		errs = append(errs, errors.New("grace and timeouts must not be negative"))
	}
	return errors.Join(errs...)
}

// set prints ranks as Python prints a set.
func set(ranks []int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, r := range ranks {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, r)
	}
	b.WriteByte('}')
	return b.String()
}

// environ overlays a worker's variables on the inherited environment. The result
// has every name once.
func environ(base []string, overlay map[string]string) []string {
	env := make([]string, 0, len(base)+len(overlay))
	for _, entry := range base {
		name, _, _ := strings.Cut(entry, "=")
		if _, ok := overlay[name]; !ok {
			env = append(env, entry)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(overlay)) {
		env = append(env, name+"="+overlay[name])
	}
	return env
}

// Wait returns the result once all workers have ended and everything they left
// behind is gone, or ctx's cause. It may be called any number of times.
// Source: PContext.wait.
func (g *Group) Wait(ctx context.Context) (*Result, error) {
	select {
	case <-g.done:
		return g.result, nil
	default:
	}
	select {
	case <-g.done:
		return g.result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// PIDs returns the workers' process IDs by local rank, also after they ended.
func (g *Group) PIDs() map[int]int { return maps.Clone(g.pids) }

// Close sends sig to every worker's process group, gives them grace, then kills
// what is left, and returns when everything has ended. Zero grace kills at once.
// A group that is being stopped already keeps the earlier of the two deadlines.
// Source: PContext.close.
func (g *Group) Close(sig syscall.Signal, grace time.Duration) error {
	select {
	case g.stops <- stopRequest{sig, grace}:
	case <-g.done:
	}
	<-g.done
	return nil
}

// Kill cuts the grace of a stop under way, or kills a group that runs. It does
// not wait.
func (g *Group) Kill() {
	select {
	case g.stops <- stopRequest{syscall.SIGKILL, 0}:
	case <-g.done:
	}
}
