package postmortem

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/muster-run/muster/events"
	"github.com/muster-run/muster/internal/jobfile"
	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/internal/sleep"
)

const (
	// lingerTime is how long output may come after the agent was killed: its workers
	// are then, too.
	lingerTime = time.Second
	// unlockTime is how long a lock may outlive the file that was closed with it.
	unlockTime = time.Second
)

// ended says how the job has ended, or the one attempt that is followed; "" while it
// has not, or nothing tells. It looks only if something may be new.
func (f *follower) ended(ctx context.Context) string {
	if f.watch.take() {
		f.dirty = true
	}
	if !f.dirty {
		return ""
	}
	if pinned, ok := parseAttempt(f.cfg.Attempt); ok && f.cfg.Only {
		later, ok := f.choose(func(_ string, n, best number) bool { return n.compare(pinned) > 0 && n.compare(best) < 0 })
		if ok {
			return fmt.Sprintf("%s is over: %s has begun", f.cfg.Attempt, later)
		}
	}
	file := f.agent(ctx)
	if file == nil {
		return eventsEnd(filepath.Join(f.cfg.Dir, events.FileName))
	}
	if file.State == jobfile.Gone && f.alive {
		_ = sleep.For(ctx, lingerTime)
	}
	f.alive = file.State == jobfile.Runs
	return ending(file)
}

// agent reads the agent's file. Word of its end may come before its lock is gone.
func (f *follower) agent(ctx context.Context) *jobfile.File {
	const pause = 5 * gap
	closed := f.watch.closed.Swap(false)
	for waited := time.Duration(0); ; waited += pause {
		file, err := agentOf(f.cfg.Dir)
		if err != nil {
			f.complain(filepath.Join(f.cfg.Dir, jobfile.Name), err)
		}
		if file == nil || !closed || file.State != jobfile.Runs || waited > unlockTime || ctx.Err() != nil {
			return file
		}
		_ = sleep.For(ctx, pause)
	}
}

// refresh makes the system ask the host that has the files for their sizes, which it
// does when one is opened.
func (f *follower) refresh() {
	for _, feed := range f.feeds {
		if file, _, err := safeopen.Open(feed.path); err == nil {
			file.Close()
		}
	}
}

// eventsEnd says from the last lines of events.jsonl how the job ended, where its
// agent has written nothing else; "" if they do not tell.
func eventsEnd(path string) string {
	text, _, err := (&reader{budget: maxTotal}).end(path)
	h := history{run: &Run{}, told: map[number]*told{}}
	if err == nil {
		_, err = h.read(bytes.NewReader(text))
	}
	switch {
	case err != nil:
		return ""
	case h.last == Succeeded:
		return "the job has succeeded"
	case h.last == Failed:
		return "the job has failed, or was stopped"
	}
	return ""
}
