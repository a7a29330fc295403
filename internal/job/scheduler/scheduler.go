package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// An Input is where Detect looks.
type Input struct {
	Lookup   func(name string) (string, bool)  // the environment
	ReadFile func(path string) ([]byte, error) // host files, /etc/hosts
	Hostname func() (name string, err error)   // this host's own name
	Terminal bool                              // the process has a terminal: somebody has typed the command
}

// A Fact is a value and what it was read from: variables, separated by commas, or
// a few words.
type Fact[T any] struct {
	Value T
	From  string
}

// A Job is what a scheduler says of the job that this process is part of.
type Job struct {
	Scheduler string // "Slurm"
	RunID     Fact[string]
	Nodes     Fact[int] // at least 1
	NodeRank  Fact[int] // 0 to Nodes-1
	// Host is where the hosts meet, the one with rank 0, and Port the port on it.
	// Unset in a job of one host.
	Host Fact[string]
	Port Fact[int]
	// Apart says that hosts may start minutes apart, as pods whose image is not on
	// every node do.
	Apart bool
	// GPUs is how many this host was given; 0 if nobody said so.
	GPUs Fact[int]
}

// A TasksError reports that the scheduler has started several processes on a host,
// where one agent starts all of the host's workers.
type TasksError struct {
	Scheduler string
	Tasks     int
	From      string
	Use       string // the command line to use instead
}

func (e *TasksError) Error() string {
	return fmt.Sprintf("%s started %d tasks on a host (%s), where muster needs one that starts all workers of the "+
		"host; use: %s (or --standalone for this host alone)",
		e.Scheduler, e.Tasks, e.From, e.Use)
}

// Detect returns the job that this process is part of, nil without an error if no
// scheduler started it. An error says what of a scheduler's variables is missing or
// wrong, and may be a *TasksError.
func Detect(in Input) (*Job, error) {
	v := vars{in}
	if _, nested := in.Lookup("TORCHELASTIC_RUN_ID"); nested {
		return nil, nil // a worker: its scheduler is the launcher that started it
	}
	for _, detect := range []func(vars) (*Job, error){openMPI, hydra, slurm, lsf, pbs, kubernetes} {
		job, err := detect(v)
		if job != nil || err != nil {
			return job, err
		}
	}
	return nil, nil
}

// maxHosts bounds every list of hosts.
const maxHosts = 65536

// vars reads the environment.
type vars struct{ Input }

// has reports whether a variable is set and not empty.
func (v vars) has(name string) bool { return v.text(name) != "" }

func (v vars) text(name string) string {
	text, _ := v.Lookup(name)
	return strings.TrimSpace(text)
}

// first returns the first of the variables that is set, with its name as From.
func (v vars) first(names ...string) Fact[string] {
	for _, name := range names {
		if text := v.text(name); text != "" {
			return Fact[string]{text, name}
		}
	}
	return Fact[string]{}
}

// number reads the first of the variables that is set, at least least.
func (v vars) number(least int, names ...string) (Fact[int], error) {
	f := v.first(names...)
	if f.From == "" {
		return Fact[int]{}, fmt.Errorf("%s is not set", strings.Join(names, " or "))
	}
	n, err := strconv.Atoi(f.Value)
	if err != nil || n < least || n > 1<<30 {
		return Fact[int]{}, fmt.Errorf("%s=%s: want a number from %d on", f.From, show(f.Value), least)
	}
	return Fact[int]{n, f.From}, nil
}

// optional is number for what need not be set: From is empty then.
func (v vars) optional(least int, names ...string) (Fact[int], error) {
	if v.first(names...).From == "" {
		return Fact[int]{}, nil
	}
	return v.number(least, names...)
}

// broken is the error of a scheduler whose variables cannot be used; nil if all of
// errs are.
func broken(scheduler string, errs ...error) error {
	problems := errors.Join(errs...)
	if problems == nil {
		return nil
	}
	return fmt.Errorf("%s's variables cannot be used: %s; with --nnodes and --rdzv-endpoint, or --standalone, muster "+
		"ignores them",
		scheduler, strings.ReplaceAll(problems.Error(), "\n", ", and "))
}

// show quotes a value from outside, no more than a line's worth of it.
func show(value string) string { return strconv.Quote(text.Clip(value, 100)) }

// within checks that a rank is one of n.
func within(rank, n Fact[int]) error {
	if rank.From != "" && n.From != "" && rank.Value >= n.Value {
		return fmt.Errorf("%s=%d with %s=%d: a rank is smaller than the number of ranks", rank.From, rank.Value, n.From,
			n.Value)
	}
	return nil
}

// visibleGPUs counts the GPUs that this process was given by the variables with
// which every scheduler hands them out.
func (v vars) visibleGPUs() Fact[int] {
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} {
		if text := v.text(name); text != "" && text != "NoDevFiles" && text != "-1" {
			return Fact[int]{countList(text), name}
		}
	}
	return Fact[int]{}
}

// countList counts the items of a comma-separated list.
func countList(text string) int {
	n := 0
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) != "" {
			n++
		}
	}
	return n
}

// Ports that are derived from a run ID: below those that the kernel gives to
// a process that asks for any port (32768 and up on Linux), and below Kubernetes' node ports.
const (
	FirstPort = 20000
	LastPort  = 28191
)

// short is a host's name without its domain.
func short(host string) string {
	name, _, _ := strings.Cut(host, ".")
	return strings.ToLower(name)
}

// index finds this host in a list: by its whole name, else by the name without its
// domain. It is -1 for a host that is not there.
func index(hosts []string, name string) int {
	if i := slices.IndexFunc(hosts, func(host string) bool { return strings.EqualFold(host, name) }); i >= 0 {
		return i
	}
	return slices.IndexFunc(hosts, func(host string) bool { return short(host) == short(name) })
}
