package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/logs"
)

const (
	// DefaultGrace is torchrun's time between a stop signal and SIGKILL.
	DefaultGrace = 30 * time.Second
	// NoGrace, like any negative grace, sends SIGKILL at once.
	NoGrace time.Duration = -1

	defaultLeftoverGrace = 2 * time.Second
)

// Logs is where a group's output goes. A *logs.Attempt is one.
// Source: LogsDest, which LogsSpecs.reify returns.
type Logs interface {
	// Sink is where the output of one worker goes. Start calls it once for each local rank.
	Sink(localRank int) logs.Sink
	// Started is called once, when all workers have been started, or none will be.
	Started() error
}

// Config describes one group of workers. The keys of Args (or Inputs) and Envs
// are the local ranks 0 … n-1, every one of them; n may be 0.
type Config struct {
	// Name is the workers' role, for messages.
	Name string
	// Entrypoint is the program; without a slash it is looked up in the
	// worker's PATH.
	Entrypoint string
	// Func is the name of a registered function to run instead of a program.
	Func string
	// Args are the arguments after the program's name. A function gets the first,
	// if there is one, as its input.
	Args map[int][]string
	// Inputs are what a function gets instead of Args, any bytes.
	Inputs map[int][]byte
	// Envs are variables on top of Env.
	Envs map[int]map[string]string
	// Env is the environment that workers inherit; nil means the program's own.
	Env []string
	// Stdin is the standard input of all workers; nil means the program's own. A
	// function has /dev/null.
	Stdin *os.File
	// ExtraFiles are open files that a worker gets beside stdin, stdout and stderr: file i
	// is its descriptor 3+i. They stay the caller's. Absent ranks get none.
	ExtraFiles map[int][]*os.File
	// Logs says where output goes. Nil: to the program's own stdout and stderr.
	// Start calls its Started, also when it fails; a *logs.Attempt has to be finished by
	// the caller when the workers have ended.
	Logs Logs
	// CPUs are the CPUs that a worker may use, by local rank. Absent means those
	// of the program.
	CPUs map[int][]int
	// Grace is the time between SIGTERM and SIGKILL when the group stops the
	// peers of a failed worker. Zero means DefaultGrace, NoGrace none.
	Grace time.Duration
	Leftovers
	// Unheeded is called once, on a goroutine of its own, when workers that were
	// told to stop are still there at half of their grace, or 5 s before its end if
	// that is later: the last moment to look at what they do. pids holds those
	// workers by local rank. ctx ends when they have ended or are killed, which
	// waits for nobody; the group's end waits for the return of Unheeded. It is not
	// called for a stop without grace. May be nil.
	Unheeded func(ctx context.Context, pids map[int]int)
	// BeforeStop is called once, before the workers that run, whose pids it has by local rank, get the first signal of
	// a stop with grace: what they do can be seen then. failed has those that have failed, in the order of their ranks.
	// The stop waits for its return. May be nil.
	BeforeStop func(failed []Exit, pids map[int]int)
	// Apart lets the peers of a worker that fails continue; see Group.Replace.
	Apart bool
	// UninterruptibleTimeout is how long a worker may be in uninterruptible sleep
	// (state D) before the group is stopped as wedged. Zero turns this off; only
	// otherwise does anything look at the workers' states.
	UninterruptibleTimeout time.Duration
	// Fork starts a worker as a copy of a process that is prepared for it, instead of by fork
	// and exec. An error means that there is no such worker: it is started as usual then, and
	// the log says why. Only Linux calls it, and only for programs without ExtraFiles.
	// May be nil.
	Fork func(Image, func(pid int) error) error
	// Logger defaults to the Supervisor's.
	Logger *slog.Logger

	sinks []logs.Sink // of Logs, by local rank
}

// Leftovers says how long the processes that a worker leaves behind may stay.
type Leftovers struct {
	// LeftoverGrace is the time between SIGTERM, which they get after 0.2 s, and SIGKILL where the worker
	// was not told to stop, unless the group is stopped. At most Config.Grace. Zero means 2s, NoGrace none.
	LeftoverGrace time.Duration
	// NoRestart says that no restart waits for what a failed worker left behind, which then has Config.Grace.
	NoRestart bool
	// HelperTimeout is how long what a worker that has succeeded leaves running, such as an upload,
	// has to end by itself, unless the group is stopped. Zero or less means 0.2 s.
	HelperTimeout time.Duration
}

// An Image is what a worker gets from exec. Config.Fork starts a process that has all of it and
// leads a session of its own, calls the function that it was given with the process's number
// before that runs any of the program, and returns once the process is this program's child.
// If the function returns an error, Fork ends the process and returns that.
type Image struct {
	LocalRank int
	Path      string
	Args, Env []string   // Args begin with the program's name
	Files     []*os.File // stdin, stdout and stderr
}

// size returns the number of workers.
func (cfg *Config) size() int {
	if cfg.Inputs != nil {
		return len(cfg.Inputs)
	}
	return len(cfg.Args)
}

// input returns what a function worker gets.
func (cfg *Config) input(rank int) []byte {
	if cfg.Inputs != nil {
		return cfg.Inputs[rank]
	}
	if args := cfg.Args[rank]; len(args) > 0 {
		return []byte(args[0])
	}
	return nil
}

// leftoverGrace is how long what a worker left behind has to end by itself.
func (cfg *Config) leftoverGrace() time.Duration {
	return min(cmp.Or(cfg.LeftoverGrace, defaultLeftoverGrace), cfg.Grace)
}

// validate reports everything that is wrong with cfg.
// Source: _validate_full_rank in multiprocessing/__init__.py.
func (cfg *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	n := cfg.size()
	want := make([]int, n)
	for i := range want {
		want[i] = i
	}
	check := func(name string, got []int) {
		if !slices.Equal(got, want) {
			bad("%s, local rank mapping mismatch, expected: %s, actual: %s", name, set(want), set(got))
		}
	}
	if cfg.Inputs == nil {
		check("args", sortedKeys(cfg.Args))
	} else {
		check("inputs", sortedKeys(cfg.Inputs))
		if cfg.Func == "" || cfg.Args != nil {
			bad("inputs are for functions, which take no args then")
		}
	}
	check("envs", sortedKeys(cfg.Envs))
	if cfg.Logs != nil {
		cfg.sinks = make([]logs.Sink, n, n+1)
		for i := range cfg.sinks {
			cfg.sinks[i] = cfg.Logs.Sink(i)
		}
		have := cfg.sinks
		if a, ok := cfg.Logs.(*logs.Attempt); ok {
			have = append(have, a.Sink(n)) // one more than there should be
		}
		var out, err []int
		for i, s := range have {
			if s.Stdout != nil {
				out = append(out, i)
			}
			if s.Stderr != nil {
				err = append(err, i)
			}
			if isClosed(s.Stdout) || isClosed(s.Stderr) {
				bad("logs, local rank %d: a file of its Sink is closed", i)
			}
		}
		check("stdouts", out)
		check("stderrs", err)
	}
	if isClosed(cfg.Stdin) {
		bad("stdin is closed")
	}
	for _, i := range sortedKeys(cfg.ExtraFiles) {
		if i < 0 || i >= n || slices.Contains(cfg.ExtraFiles[i], nil) {
			bad("extra files, local rank %d is not one of %s, or has a nil file", i, set(want))
		} else if slices.ContainsFunc(cfg.ExtraFiles[i], isClosed) {
			bad("extra files, local rank %d has a closed file", i)
		}
	}
	for _, i := range sortedKeys(cfg.CPUs) {
		if i < 0 || i >= n {
			bad("CPUs, local rank %d is not one of %s", i, set(want))
		}
		for _, cpu := range cfg.CPUs[i] {
			if cpu < 0 {
				bad("CPUs, local rank %d: %d is not a CPU", i, cpu)
			}
		}
	}
	cfg.validateValues(bad)
	if cfg.Func != "" {
		errs = append(errs, CheckFunc(cfg.Func))
	}
	return errors.Join(errs...)
}

// validateValues is the part of validate that has nothing to do with the number of workers.
func (cfg *Config) validateValues(bad func(format string, args ...any)) {
	if (cfg.Entrypoint == "") == (cfg.Func == "") {
		bad("a worker needs an entrypoint or a function, and not both")
	}
	for _, rank := range sortedKeys(cfg.Envs) {
		for _, name := range sortedKeys(cfg.Envs[rank]) {
			value := cfg.Envs[rank][name]
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
				bad("envs, local rank %d: %.80q=%.80q cannot be an environment variable", rank, name, value)
			}
		}
	}
	for _, rank := range sortedKeys(cfg.Args) {
		if n := len(cfg.Args[rank]); cfg.Func != "" && n > 1 {
			bad("args, local rank %d: a function takes one, got %d", rank, n)
		}
		for i, arg := range cfg.Args[rank] {
			if cfg.Func == "" && strings.Contains(arg, "\x00") {
				bad("args, local rank %d: argument %d, %.80q, holds a NUL byte", rank, i+1, arg)
			}
		}
	}
	if cfg.UninterruptibleTimeout < 0 {
		bad("uninterruptible timeout is %v, must not be negative", cfg.UninterruptibleTimeout)
	}
}

func isClosed(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := f.Stat()
	return errors.Is(err, os.ErrClosed)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// set prints ranks as Python prints a set.
func set(ranks []int) string {
	if len(ranks) == 0 {
		return "set()"
	}
	return "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]") + "}"
}

// environ overlays a worker's variables on the inherited environment. Of the entries
// with one name only the last is in the result.
func environ(base []string, overlay map[string]string) []string {
	env := make([]string, 0, len(base)+len(overlay)+2)
	seen := make(map[string]bool, len(base))
	for _, entry := range slices.Backward(base) {
		name, _, _ := strings.Cut(entry, "=")
		if _, ok := overlay[name]; !ok && !seen[name] {
			seen[name] = true
			env = append(env, entry)
		}
	}
	slices.Reverse(env)
	for _, name := range slices.Sorted(maps.Keys(overlay)) {
		env = append(env, name+"="+overlay[name])
	}
	return env
}
