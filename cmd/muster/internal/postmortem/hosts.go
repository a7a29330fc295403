package postmortem

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/jobfile"
)

// isOfHost says whether a run is that of one host of a job whose hosts' directories are beside
// each other, and takes in what its agent says.
func (d *Dir) isOfHost() bool {
	file, err := agentOf(d.Path)
	if err != nil || file == nil || file.Begin.Layout != jobfile.JobLayout {
		return false
	}
	d.RunID, d.agent = file.Begin.RunID, file
	return true
}

// name is the host's.
func (d *Dir) name() string { return cmp.Or(d.agent.Begin.Host, clean(filepath.Base(d.Path))) }

// end is when a host's part of a job ended, as far as that is known. All that took part in an
// attempt had begun before its directories were made.
func (d *Dir) end() time.Time {
	switch {
	case d.agent.State == jobfile.Runs:
		return time.Now()
	case d.agent.End.Ended.After(d.Time):
		return d.agent.End.Ended
	}
	return d.Time
}

// jobsOf puts those directories of hosts together that were of one run of a job, the newest first.
// A job whose run ID is used again begins after all hosts of the one before have ended.
func jobsOf(path string, hosts []Dir) (jobs []Dir) {
	slices.SortFunc(hosts, func(a, b Dir) int { return b.end().Compare(a.end()) })
	var began time.Time // the first host of the last job
	for _, h := range hosts {
		if jobs == nil || h.end().Before(began) {
			jobs = append(jobs, Dir{Path: path, RunID: h.RunID})
			began = h.agent.Begin.Started
		}
		if h.agent.Begin.Started.Before(began) {
			began = h.agent.Begin.Started
		}
		job := &jobs[len(jobs)-1]
		job.Hosts = append(job.Hosts, h)
		if h.Time.After(job.Time) {
			job.Time = h.Time
		}
		job.Attempts = max(job.Attempts, h.Attempts)
	}
	for i := range jobs {
		all := slices.Clone(jobs[i].Hosts)
		jobs[i].Hosts = slices.DeleteFunc(jobs[i].Hosts, func(h Dir) bool {
			return slices.ContainsFunc(all, func(other Dir) bool { return h.precedes(&other) })
		})
		slices.SortFunc(jobs[i].Hosts, func(a, b Dir) int { return cmp.Compare(a.Path, b.Path) })
	}
	return jobs
}

// OfAgent returns the run in an agent's directory or, where those of a job's hosts are beside each
// other, the job with all of them.
func OfAgent(path string) (Dir, error) {
	if own := (Dir{Path: path}); own.isOfHost() {
		entries, err := list(filepath.Dir(path))
		if err != nil {
			return own, err
		}
		jobs := runsIn(filepath.Dir(path), entries, false)
		for _, job := range jobs {
			if slices.ContainsFunc(job.Hosts, func(h Dir) bool { return h.Path == path }) {
				return job, nil
			}
		}
		if len(jobs) > 0 {
			return jobs[0], nil
		}
	}
	runs, _, err := Find(path)
	if err != nil {
		return Dir{}, err
	}
	return runs[0], nil
}

// precedes says that the job had ended on a host before another agent began there.
func (d *Dir) precedes(other *Dir) bool {
	over := slices.Contains([]string{jobfile.Succeeded, jobfile.Failed, jobfile.Preempted}, d.agent.End.Outcome)
	return over && d.name() == other.name() && d.agent.End.Ended.Before(other.agent.Begin.Started)
}

// Read reads a run, or all hosts of a job.
func (d *Dir) Read() (*Run, error) {
	if len(d.Hosts) == 0 {
		return Read(d.Path)
	}
	var runs []*Run
	var problems []string
	for _, h := range d.Hosts {
		run, err := Read(h.Path)
		if err != nil {
			problems = append(problems, clean(err.Error()))
			continue
		}
		runs = append(runs, run)
	}
	if runs == nil {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return join(d, runs, problems), nil
}

// weight says which outcome is that of the job if its hosts have several.
var weight = []Outcome{Running, Failed, Preempted, Succeeded, Stopped, Killed, Left, Unknown}

// join makes one run of those of a job's hosts.
func join(d *Dir, runs []*Run, problems []string) *Run {
	lead := slices.MinFunc(runs, func(a, b *Run) int {
		return cmp.Compare(slices.Index(weight, a.Outcome), slices.Index(weight, b.Outcome))
	})
	all := *lead
	all.Dir, all.RunID, all.Hosts, all.Attempts, all.Events = d.Path, d.RunID, runs, nil, ""
	all.Problems = problems
	of := map[number][]*Attempt{}
	for _, run := range slices.SortedFunc(slices.Values(runs), func(a, b *Run) int { return a.Started.Compare(b.Started) }) {
		if !run.Started.IsZero() && (all.Started.IsZero() || run.Started.Before(all.Started)) {
			all.Started = run.Started
		}
		if run.Ended.After(all.Ended) {
			all.Ended = run.Ended
		}
		all.Restarts = max(all.Restarts, run.Restarts)
		for _, p := range run.Problems {
			all.Problems = append(all.Problems, run.Host+": "+p)
		}
		for i := range run.Attempts {
			a := &run.Attempts[i]
			n := number{a.Restart, a.Again}
			of[n] = append(of[n], a)
		}
	}
	for _, parts := range of {
		all.Attempts = append(all.Attempts, joinAttempt(d.Path, parts))
	}
	slices.SortFunc(all.Attempts, func(a, b Attempt) int {
		return number{a.Restart, a.Again}.compare(number{b.Restart, b.Again})
	})
	return &all
}

// joinAttempt makes one attempt of those of several hosts, the later ones of which count if two
// say that they had a rank.
func joinAttempt(dir string, parts []*Attempt) Attempt {
	all := *slices.MinFunc(parts, func(a, b *Attempt) int {
		if a.knows() != b.knows() {
			return cmp.Compare(b.knows(), a.knows())
		}
		if a.knows() == 2 {
			return a.Failures[0].FailedAt.Compare(b.Failures[0].FailedAt)
		}
		return cmp.Compare(slices.Index(weight, a.Outcome), slices.Index(weight, b.Outcome))
	})
	all.Dir, all.Workers, all.Problems, all.LastWords = dir, nil, nil, nil
	for _, a := range parts {
		if !a.Started.IsZero() && a.Started.Before(all.Started) {
			all.Started = a.Started
		}
		if a.Ended.After(all.Ended) {
			all.Ended = a.Ended
		}
		if all.Autopsies == nil {
			all.Autopsies = a.Autopsies
		}
		all.GPUs = cmp.Or(all.GPUs, a.GPUs)
		all.Problems = append(all.Problems, a.Problems...)
		all.LastWords = append(all.LastWords, a.LastWords...)
		for _, w := range a.Workers {
			all.Workers = slices.DeleteFunc(all.Workers, func(other Worker) bool { return other.Rank == w.Rank })
			all.Workers = append(all.Workers, w)
		}
	}
	slices.SortFunc(all.Workers, func(a, b Worker) int { return a.Rank - b.Rank })
	return all
}

// knows says how much an attempt tells of a failure.
func (a *Attempt) knows() int {
	switch {
	case len(a.Failures) > 0 && !a.Failures[0].FailedAt.IsZero():
		return 2
	case a.Cause != "" || len(a.Failures) > 0:
		return 1
	}
	return 0
}

// followHosts follows the hosts of a job, and those that come, until the job has ended on all.
func followHosts(ctx context.Context, cfg FollowConfig, out *output) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		host, how string
		err       error
	}
	ended := make(chan end)
	running, seen := 0, map[string]bool{}
	follow := func(path, host string) {
		own := cfg
		own.Dir, own.Hosts, own.among = path, nil, true
		running++
		go func() {
			e := end{host: host}
			own.End = func(how string) { e.how = how }
			e.err = followRun(ctx, own, out)
			ended <- e
		}()
	}
	for _, h := range cfg.Hosts {
		seen[h.Path] = true
		follow(h.Path, h.name())
	}
	var errs []error
	hosts := map[string][]string{} // by how they ended
	for first := true; running > 0; first = false {
		entries, _ := list(cfg.Dir)
		for _, e := range entries {
			d := Dir{Path: filepath.Join(cfg.Dir, e.Name())}
			if seen[d.Path] || !e.IsDir() || !d.isOfHost() { // its file may come
				continue
			}
			seen[d.Path] = true
			if state := d.agent.State; !first || state == jobfile.Runs || state == jobfile.Unknown && d.agent.Begin.Started.After(cfg.Hosts[0].agent.Begin.Started) {
				follow(d.Path, d.name())
			}
		}
		select {
		case e := <-ended:
			running--
			if errs = append(errs, e.err); e.err != nil {
				cancel()
			}
			if e.how != "" {
				hosts[e.how] = append(hosts[e.how], e.host)
			}
		case <-time.After(pollInterval):
		}
	}
	if err := errors.Join(errs...); err != nil || cfg.End == nil {
		return err
	}
	for _, how := range slices.Sorted(maps.Keys(hosts)) {
		if names := hosts[how]; len(hosts) > 1 {
			how = strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", ") + ": " + how
		}
		cfg.End(how)
	}
	return nil
}
