package postmortem

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/job/accounts"
)

// times are when an attempt ran; zero if that is not known.
type times struct{ started, ended time.Time }

// recordedTimes takes the times of attempts, by their names, from the marks of time.jsonl.
func recordedTimes(dir string) map[string]*times {
	record, err := accounts.Read(dir)
	if err != nil {
		return nil // Time says why
	}
	all := map[string]*times{}
	var current *times
	for _, m := range record.Marks {
		at := time.UnixMilli(m.At)
		switch {
		case m.LocalRank != nil || at.Year() < 1970 || at.Year() > 9999: // JSON has no form for others
		case m.Attempt != "":
			current = &times{started: at}
			all[m.Attempt] = current
		case current == nil:
		case !slices.Contains([]accounts.Account{accounts.Restart, accounts.Waiting, accounts.Rendezvous, accounts.Agent}, m.Account):
			current.ended = time.Time{}
		case current.ended.IsZero():
			current.ended = at
		}
	}
	return all
}

// Time says where the time of the newest run went, and of all others with its run ID. The error says why
// that is known of none of them.
func Time(dirs []Dir) (*accounts.Report, error) {
	var runs []accounts.Run
	var problems []string
	title := ""
	for _, d := range dirs {
		if d.RunID != dirs[0].RunID {
			continue
		}
		record, err := accounts.Read(d.Path)
		run, runErr := Read(d.Path)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it is not there: the run is torchrun's, or of a release without it")
		}
		if err = cmp.Or(err, runErr); err != nil {
			problems = append(problems, clean(filepath.Join(d.Path, accounts.FileName)+": "+err.Error()))
			continue
		}
		part := accounts.Run{Dir: d.Path, Host: run.Host, Started: run.Started, Ended: run.Ended, Record: *record}
		if run.agent != nil {
			part.Started = cmp.Or(run.agent.Begin.Started, part.Started)
			if !run.agent.End.Ended.IsZero() {
				part.Ended = run.agent.End.Ended
			}
		}
		if run.Outcome == Running {
			part.Ended = time.Now()
		} else if run.agent != nil && run.agent.End.Ended.IsZero() {
			for _, m := range record.Marks {
				if at := time.UnixMilli(m.At); at.After(part.Ended) && at.Before(time.Now()) {
					part.Ended = at
				}
			}
			problems = append(problems, clean(filepath.Join(d.Path, accounts.FileName)+
				": the agent has not written its end: its run counts until its last mark, of which there is one a minute"))
		}
		title = cmp.Or(title, run.Title)
		runs = append(runs, part)
	}
	if runs == nil {
		return nil, errors.New(problems[0])
	}
	r := accounts.NewReport(clean(dirs[0].RunID), runs)
	r.Title, r.Problems = title, problems
	return r, nil
}
