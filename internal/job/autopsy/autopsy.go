package autopsy

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/flight"
)

// defaultTimeout bounds Take where Config names no timeout.
const defaultTimeout = 5 * time.Second

// envFlightPipe is the beginning of the path of the pipe that makes NCCL's flight recorder write its
// file; the rank and ".pipe" follow. It must have been set when the worker was started.
// Source: DumpPipe in ProcessGroupNCCL.hpp.
const envFlightPipe = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"

// envFlightFile is the beginning of the path of the flight recorder's file; the
// rank follows. The first variable that is set counts.
// Source: FlightRecorder's DebugInfoWriter.
var envFlightFile = [...]string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}

// A Target is a worker to look at.
type Target struct {
	Rank, LocalRank, PID int
	// Witness asks what package witness has put into the worker; nil if that is nothing.
	Witness func(ctx context.Context, pid int) ([]byte, error)
}

// A Job is the workers of one run ID on this host, in order of their ranks.
type Job struct {
	RunID   string
	Workers []Target
}

// Config says how to take the evidence. The zero Config is usable.
type Config struct {
	// Timeout bounds Take for all workers together. Default 5 s.
	Timeout time.Duration
	// PySpy is the py-spy program to use. "" means to look for it beside the
	// worker's interpreter, in its virtual environment and its PATH, then in our
	// own PATH; for another user's process in our own PATH only. Of the worker's
	// places, those count to which nobody but this user and root may write.
	PySpy string
	// World is the job's number of ranks; 0 if that is not known. Behind is what this host's clock is
	// behind that of the job.
	World  int
	Behind time.Duration
	// Logger gets what was noticed. Nil means slog.Default().
	Logger *slog.Logger
}

// States of a worker that are telling by themselves.
const (
	stateGone    = "gone"
	stateZombie  = "zombie"
	stateStopped = "stopped"
	stateTraced  = "traced"
	stateDisk    = "uninterruptible sleep"
)

// A Frame is one call of a Python stack.
type Frame struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// A Thread is a thread that runs Python.
type Thread struct {
	// Name is what Python calls the thread, ID its number as the source shows it,
	// TID the kernel's number for it, 0 if the source does not say.
	Name string `json:"name,omitempty"`
	ID   string `json:"id,omitempty"`
	TID  int    `json:"tid,omitempty"`
	// Main reports whether it is the interpreter's main thread.
	Main bool `json:"main,omitempty"`
	// Active reports whether it was on a CPU, GIL whether it held the interpreter's
	// lock. Only py-spy tells.
	Active bool `json:"active,omitempty"`
	GIL    bool `json:"gil,omitempty"`
	// Frames begin with the innermost call.
	Frames []Frame `json:"frames"`
}

// Python is what was learnt about a process' Python stacks.
type Python struct {
	// Source is where Threads come from: "the worker" or "py-spy"; "" if no source had them.
	Source  string   `json:"source,omitempty"`
	Threads []Thread `json:"threads,omitempty"`
	// Unread says that it is a Python interpreter, and that no source had them.
	Unread bool `json:"unread,omitempty"`
	// Seconds is how long that took.
	Seconds float64 `json:"seconds,omitempty"`
	// Problems say why a source did not answer, and what to do.
	Problems []string `json:"problems,omitempty"`
}

// A Process is a process that a worker started.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	State   string `json:"state"`
	Python  Python `json:"python"`
}

// A Worker is the evidence of one worker.
type Worker struct {
	// Host is where it runs, in a report of several hosts.
	Host      string `json:"host,omitempty"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	PID       int    `json:"pid"`
	// State is the process' state in words: running, sleeping, stopped, traced,
	// uninterruptible sleep, zombie, gone.
	State   string `json:"state"`
	Command string `json:"command,omitempty"`
	Python  Python `json:"python"`
	// Same: its stacks are those of the n-th of Report.Shared, from 1 on; 0 if it has its own.
	Same int `json:"same,omitempty"`
	// Children are its descendants, those that run Python with their stacks.
	Children []Process `json:"children,omitempty"`
	Native   Native    `json:"native"`
	Flight   []Flight  `json:"flight_recorder,omitempty"`
	// Silent says why a worker that could tell what its flight recorder has does not answer.
	Silent string `json:"silent,omitempty"`
	// Dumps are what other hosts need of the flight recorder: flight.Encode's, gzipped.
	Dumps [][]byte `json:"dumps,omitempty"`
	// Problems say what else could not be had.
	Problems []string `json:"problems,omitempty"`
}

// A Report is what Take found. It may be read concurrently, not changed.
type Report struct {
	Reason string    `json:"reason"`
	Host   string    `json:"host"`
	Time   time.Time `json:"time"`
	// Seconds is how long taking it took.
	Seconds float64  `json:"seconds"`
	Workers []Worker `json:"workers"`
	// Shared are the stacks that several workers have, of other hosts in a large job.
	Shared []Worker `json:"shared,omitempty"`
	// Missing says of which hosts of the job there is nothing, and why.
	Missing []string `json:"missing,omitempty"`
	// Collectives is what all workers' flight recorders together say; nil if there are none.
	Collectives *flight.Verdict `json:"collectives,omitempty"`
	// Blame: in what the agent that asks all others tells them: who differs is to be killed.
	Blame bool `json:"blame,omitempty"`

	world  int
	behind time.Duration
}

// Take looks at the targets, all at the same time, and returns when it has all it
// can have, at the latest when cfg.Timeout has passed or ctx is done. The reason
// becomes the report's title. Workers are in the order of the targets.
func Take(ctx context.Context, reason string, targets []Target, cfg Config) *Report {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	r := &Report{Reason: reason, Time: began, Workers: make([]Worker, len(targets)), world: cfg.World, behind: cfg.Behind}
	r.Host, _ = os.Hostname()
	t := &taking{cfg: cfg, slots: make(chan struct{}, helpers), first: make(chan struct{})}
	var all, first sync.WaitGroup
	first.Add(len(targets))
	for i, target := range targets {
		all.Go(func() { t.worker(ctx, target, &r.Workers[i], sync.OnceFunc(first.Done)) })
	}
	first.Wait()
	close(t.first)
	all.Wait()
	r.Seconds = time.Since(began).Seconds()
	cfg.Logger.Debug("took evidence of workers", "reason", reason, "workers", len(targets), "seconds", r.Seconds)
	return r
}

// helpers is how many helper programs run at a time.
const helpers = 16

// A taking is one call of Take.
type taking struct {
	cfg   Config
	slots chan struct{} // holds a value for each helper program that runs
	first chan struct{} // closed when all workers' own stacks are there, or never will be
}

// within runs f, which the kernel may hold up for as long as it likes, and waits
// for it until ctx is done, and a moment longer: f may end with ctx, too, and say why. f must not
// touch what its caller has.
func within[T any](ctx context.Context, f func() T) (result T, ok bool) {
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case result = <-done:
		return result, true
	case <-ctx.Done():
	}
	select {
	case result = <-done:
		return result, true
	case <-time.After(100 * time.Millisecond):
		return result, false
	}
}

// worker collects one worker's evidence. Its parts run at the same time, and
// each of them ends with ctx. It calls own when the worker's own stacks are there.
func (t *taking) worker(ctx context.Context, target Target, w *Worker, own func()) {
	defer own()
	*w = Worker{Rank: target.Rank, LocalRank: target.LocalRank, PID: target.PID}
	s := t.subject(ctx, target)
	w.State, w.Command, w.Problems = s.state, s.command, s.problems
	if s.state == stateGone || s.state == stateZombie {
		return
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	witness := sync.OnceValue(func() testimony { return t.witness(ctx, s) })
	parts.Go(func() {
		began := time.Now()
		w.Python = t.python(ctx, s, witness)
		w.Python.Seconds = time.Since(began).Seconds()
		own()
	})
	parts.Go(func() { w.Children = t.children(ctx, s) })
	parts.Go(func() { w.Native = native(ctx, target.PID) })
	parts.Go(func() { w.Flight, w.Silent = t.flight(ctx, s, witness()) })
}

// A subject is a process under examination.
type subject struct {
	Target
	identity
	command  string
	program  string // what it was called as
	python   bool   // its program is a Python interpreter
	env      []string
	problems []string
}

// An identity is what may be read of any process without waiting for its memory.
type identity struct {
	state string
	exe   string // its program's file
	cwd   string
	uid   int    // whose it is, -1 if unknown
	start uint64 // with the pid, names the process for good
}

// getenv returns a variable of the process' environment.
func (s *subject) getenv(name string) string {
	for _, entry := range s.env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func (t *taking) subject(ctx context.Context, target Target) *subject {
	s := &subject{Target: target, identity: identity{state: "unknown", uid: -1}}
	id, ok := within(ctx, func() identity { return identify(target.PID) })
	if !ok {
		s.problems = append(s.problems, "/proc did not answer in time")
		return s
	}
	s.identity = id
	if s.state == stateGone || s.state == stateZombie {
		return s
	}
	// These are in the process' memory, which may be locked.
	short, cancel := context.WithTimeout(ctx, t.cfg.Timeout/5)
	defer cancel()
	m, ok := within(short, func() (m subject) {
		argv := commandLine(target.PID)
		if m.command = text.Clip(text.CommandLine(argv), maxText); len(argv) > 0 {
			m.program = argv[0]
		}
		var err error
		if m.env, err = environment(target.PID); err != nil {
			m.problems = []string{"environment: " + err.Error()}
		}
		m.python = isInterpreter(id.exe) || hasLibpython(target.PID)
		return m
	})
	if !ok {
		s.problems = append(s.problems, "command line and environment did not come in time: the process' memory is "+
			"locked in the kernel")
		s.python = isInterpreter(s.exe)
		return s
	}
	m.Target, m.identity = s.Target, s.identity
	return &m
}
