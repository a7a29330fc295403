package postmortem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-run/muster/internal/files/inotify"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/jobfile"
	"github.com/muster-run/muster/internal/wait/sleep"
)

// agentOf says what a run's agent has written of itself; nil if there is nothing
// that can be believed.
func agentOf(dir string) (*jobfile.File, error) {
	f, err := jobfile.Read(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	if host, _ := os.Hostname(); f.State == jobfile.Gone && f.Begin.Host != host && inotify.Remote(dir) {
		f.State = jobfile.Unknown // locks of other hosts may be out of sight
	}
	b, e := &f.Begin, &f.End
	for _, s := range [...]*string{&b.RunID, &b.Title, &b.Host, &e.Outcome, &e.Cause} {
		*s = clean(*s)
	}
	e.Cause = text.AsOptions.Replace(e.Cause)
	return f, nil
}

// outcome is what it says of the run.
func outcome(f *jobfile.File) Outcome {
	switch f.State {
	case jobfile.Runs:
		return Running
	case jobfile.Gone:
		return Killed
	case jobfile.Ended:
		switch o := Outcome(f.End.Outcome); o {
		case Succeeded, Failed, Preempted, Stopped, Left:
			return o
		}
	}
	return Unknown
}

// endTime is how long an agent may take to its end when it has sent the last line.
const endTime = 10 * time.Second

// Ending says in a line what became of a job whose agent on this host ends, from its directory; ""
// if that does not tell.
func Ending(ctx context.Context, dir string) string {
	for limit := time.Now().Add(endTime); ; {
		f, err := agentOf(dir)
		switch {
		case f == nil || err != nil:
			return ""
		case f.State != jobfile.Runs:
			return ending(f)
		case time.Now().After(limit) || sleep.For(ctx, 10*time.Millisecond) != nil:
			return "the agent sends no more lines, and has not ended"
		}
	}
}

// ending says in a line what became of the job; "" if that is not known, or it runs.
func ending(f *jobfile.File) string {
	text := map[Outcome]string{
		Succeeded: "the job has succeeded", Failed: "the job has failed", Preempted: "the job was preempted",
		Stopped: "the agent was told to stop", Left: "this host has left the job",
		Killed: fmt.Sprintf("the agent (pid %d on host %s) is gone and did not say how the job ended; it was killed, or "+
			"its host was", f.Begin.PID, f.Begin.Host),
	}[outcome(f)]
	if text != "" && f.End.Cause != "" {
		text += ": " + f.End.Cause
	}
	return text
}

// job takes in what the agent has written of itself.
func (run *Run) job() {
	f, err := agentOf(run.Dir)
	if err != nil {
		run.problem("%s: %v", filepath.Join(run.Dir, jobfile.Name), err)
	}
	if f == nil {
		return
	}
	run.agent = f
	b := &f.Begin
	run.RunID, run.Title, run.Host = cmp.Or(b.RunID, run.RunID), cmp.Or(b.Title, run.Title), cmp.Or(b.Host, run.Host)
	run.MaxRestarts = max(-1, b.MaxRestarts)
	run.Cause = f.End.Cause
}
