package autopsy

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/parallel"
)

// Bounds of what is kept, whatever the sources say.
const (
	maxThreads  = 512  // of a process
	maxFrames   = 128  // of a thread
	maxText     = 4096 // characters of a name
	maxChildren = 64   // of a worker
)

// installHint is the advice where no source has Python stacks.
const installHint = "for Python stacks, install py-spy in the worker's environment (pip install py-spy)"

// python asks the sources of Python stacks one after the other: first the worker, which is not stopped for it.
func (t *taking) python(ctx context.Context, s *subject, witness func() testimony) Python {
	if !s.python {
		return Python{Problems: []string{fmt.Sprintf("%s is not a Python interpreter", cmp.Or(s.exe, "the program"))}}
	}
	soon, cancel := context.WithTimeout(ctx, t.cfg.Timeout/10)
	defer cancel()
	if own, ok := within(soon, witness); ok && len(own.Threads) > 0 {
		return Python{Source: "the worker", Threads: tidy(own.Threads)}
	}
	p := t.pySpy(ctx, s)
	if p.Source == "" && len(witness().Threads) > 0 {
		return Python{Source: "the worker", Threads: tidy(witness().Threads)}
	}
	if p.Source == "" {
		p.Unread, p.Problems = true, append(p.Problems, installHint)
	}
	return p
}

// children finds what the worker has started and asks the Python processes among
// them for their stacks. There may be many, so the workers go first.
func (t *taking) children(ctx context.Context, s *subject) []Process {
	select {
	case <-t.first:
	case <-time.After(t.cfg.Timeout / 4):
	case <-ctx.Done():
		return nil
	}
	found, ok := within(ctx, func() []int { return descendants(s.PID, maxChildren) })
	if !ok {
		return nil
	}
	return parallel.Map(len(found), maxChildren, func(i int) Process {
		child := t.subject(ctx, Target{PID: found[i]})
		p := Process{PID: found[i], Command: child.command, State: child.state}
		// Python's own helper processes have nothing to tell.
		helper := strings.Contains(child.command, "multiprocessing.resource_tracker")
		if child.python && !helper && child.state != stateZombie && child.state != stateGone {
			p.Python = t.pySpy(ctx, child)
		}
		return p
	})
}

// isInterpreter reports whether a program is a Python interpreter, by its name.
func isInterpreter(exe string) bool {
	return strings.HasPrefix(filepath.Base(exe), "python")
}

// tidy cuts what a source said down to what is kept, and puts the main thread first and
// the others in order of their numbers.
func tidy(threads []Thread) []Thread {
	slices.SortStableFunc(threads, func(a, b Thread) int { return cmp.Or(before(a.Main, b.Main), cmp.Compare(a.TID, b.TID)) })
	threads = threads[:min(len(threads), maxThreads)]
	for i := range threads {
		t := &threads[i]
		t.Name = text.Clip(t.Name, maxText)
		t.Frames = t.Frames[:min(len(t.Frames), maxFrames)]
		for j := range t.Frames {
			f := &t.Frames[j]
			f.Function, f.File = text.Clip(f.Function, maxText), text.Clip(f.File, maxText)
		}
	}
	return threads
}
