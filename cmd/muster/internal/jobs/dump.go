package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/job/autopsy"
)

// othersTime is how long an agent may take to ask all others: 8 s for their stacks, if one does not
// answer, and before that for their states, where it has no workers itself. Who gives up sooner has
// nothing of any.
const othersTime = 15 * time.Second

// A dumpRequest is what `muster dump` was asked for.
type dumpRequest struct {
	pids    []int
	job     string
	out     string
	json    bool
	timeout time.Duration
	agents  []job // of the job, on this host; nil without one
}

// Dump is `muster dump`.
func Dump(ctx context.Context, c *command.Command, args []string) error {
	req := parseDump(c, args)
	logger := c.Logger(c.Stderr)
	if err := c.Refused(); err != nil {
		return err
	}
	found, err := req.find(ctx)
	if found != nil {
		err = errors.Join(err, req.take(ctx, c, found, logger))
	}
	return err
}

// take takes the evidence of a job and shows it.
func (req dumpRequest) take(ctx context.Context, c *command.Command, job *autopsy.Job,
	logger *slog.Logger) (err error) {
	others, told := req.others(ctx), req.told(ctx)
	reason, cfg := "on demand", autopsy.Config{Timeout: req.timeout, Logger: logger}
	if job.RunID != "" {
		reason += ", job " + job.RunID
	}
	if len(req.agents) > 0 && req.agents[0].state != nil {
		cfg.World = req.agents[0].state.Job.WorldSize
	}
	report := autopsy.Take(ctx, reason, job.Workers, cfg)
	for _, r := range told {
		report.Adopt(r)
	}
	report = others(report)
	report.Judge()
	if req.out != "" {
		var text, jsonPath string
		if text, jsonPath, err = report.WriteDir(req.out); err == nil {
			c.Note(fmt.Sprintf("wrote %s and %s", text, jsonPath))
		}
	}
	if req.json {
		return errors.Join(err, writeJSON(c.Stdout, report))
	}
	_, failed := io.WriteString(c.Stdout, report.Answer())
	return errors.Join(err, failed)
}

func parseDump(c *command.Command, args []string) (req dumpRequest) {
	c.Func("pid", "", func(text string) error {
		for pid := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(pid))
			if err != nil || n < 1 {
				c.Wrong("--pid cannot be %s; want the number of a process", console.Quote(pid))
				continue
			}
			req.pids = append(req.pids, n)
		}
		return nil
	})
	c.Text("out", &req.out)
	c.BoolVar(&req.json, "json", false, "")
	req.timeout = 5 * time.Second
	c.Value("timeout", "seconds, or a time such as 10m, more than 0 and at most 3600s", func(text string) error {
		return command.ParseSeconds(text, &req.timeout, 3600)
	})
	req.job = c.AtMost(1, args)[0]
	if len(req.pids) > 0 && req.job != "" {
		c.Wrong("--pid and a job exclude each other; leave one of them out")
	}
	return req
}

// find returns the workers that were asked for, nil if there are none, and an error for each that
// is not there.
func (req *dumpRequest) find(ctx context.Context) (*autopsy.Job, error) {
	if len(req.pids) > 0 {
		var job autopsy.Job
		var errs []error
		for _, pid := range req.pids {
			target, err := autopsy.TargetOf(ctx, pid)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			job.Workers = append(job.Workers, target)
		}
		if job.Workers == nil {
			return nil, errors.Join(errs...)
		}
		return &job, errors.Join(errs...)
	}
	if req.job != "" {
		return req.findJob(ctx)
	}
	jobs, err := autopsy.Find(ctx)
	if len(jobs) == 0 {
		return nil, cmp.Or(err, errors.New("no workers of this user run on this host; name a process with --pid"))
	}
	list := "no job is named; name one by its run ID, or a process with --pid:"
	for _, job := range jobs {
		list += fmt.Sprintf("\n  job %s (%s)", console.Quote(job.RunID), text.Count(len(job.Workers), "worker"))
	}
	return nil, errors.New(list)
}

// findJob returns the workers of the job that is meant, one of muster's or of torchrun's.
func (req *dumpRequest) findJob(ctx context.Context) (*autopsy.Job, error) {
	agents, missing := theJob(ctx, req.job, false)
	if agents != nil && missing != nil {
		return nil, missing
	}
	var workers []autopsy.Target
	for i := range agents {
		if agents[i].PID == 0 {
			continue // in a pid namespace that cannot be seen from here
		}
		found, err := autopsy.WorkersOf(ctx, agents[i].PID)
		if err != nil {
			return nil, err
		}
		workers = append(workers, found...)
	}
	req.agents = agents
	if workers != nil {
		return &autopsy.Job{RunID: agents[0].runID(), Workers: workers}, nil
	}
	if agents != nil && agents[0].state != nil && agents[0].state.Job.MaxHosts > 1 {
		return &autopsy.Job{RunID: agents[0].runID()}, nil // it may have some elsewhere
	}
	if agents != nil {
		return nil, fmt.Errorf("%s has no workers now", agents[0].name())
	}
	jobs, err := autopsy.Find(ctx)
	if i := slices.IndexFunc(jobs, func(j autopsy.Job) bool { return j.RunID == req.job }); i >= 0 {
		return &jobs[i], nil
	}
	return nil, cmp.Or(err, missing)
}

// told is what this host's agents of the job say, before the workers are stopped to be looked at. Without it
// there are the stacks.
func (req dumpRequest) told(ctx context.Context) (reports []*autopsy.Report) {
	var peers autopsy.Peers
	for i := range req.agents {
		body, err := req.agents[i].askFor(ctx, "POST", "/v1/autopsy?scope=host&reason=muster+dump", fetchTimeout+req.timeout)
		if err == nil {
			if r, err := peers.Read(body); err == nil {
				reports = append(reports, r)
			}
		}
	}
	return reports
}

// others begins to ask the other hosts of the job that is meant, and returns what adds their
// evidence to that of this host.
func (req dumpRequest) others(ctx context.Context) func(*autopsy.Report) *autopsy.Report {
	agents := req.agents
	if len(agents) == 0 || agents[0].state == nil || agents[0].state.Job.MaxHosts < 2 {
		return func(own *autopsy.Report) *autopsy.Report { return own }
	}
	asked := make(chan error, 1)
	done := &health.Done{}
	go func() {
		body, err := agents[0].askFor(ctx, "POST",
			"/v1/autopsy?reason="+url.QueryEscape("muster dump on "+agents[0].state.Host.Name),
			max(othersTime, fetchTimeout+req.timeout))
		if err == nil {
			err = json.Unmarshal(body, done)
		}
		asked <- err
	}()
	return func(own *autopsy.Report) *autopsy.Report {
		var peers autopsy.Peers
		var reports []*autopsy.Report
		var missing []string
		if err := <-asked; err != nil {
			missing = append(missing, fmt.Sprintf("the other hosts (%v)", err))
		}
		for _, body := range done.Reports {
			r, err := peers.Read(body)
			if err != nil {
				missing = append(missing, fmt.Sprintf("a host whose answer cannot be read (%v)", err))
				continue
			}
			reports = append(reports, r)
		}
		for _, m := range done.Missing {
			if !slices.ContainsFunc(agents, func(j job) bool {
				return j.state != nil && j.state.Host.GroupRank == m.GroupRank
			}) {
				missing = append(missing, fmt.Sprintf("group rank %d (%s)", m.GroupRank, text.Line(m.Why, len(m.Why))))
			}
		}
		return own.With(reports, missing)
	}
}
