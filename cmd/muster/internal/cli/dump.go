package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/autopsy"
	"github.com/muster-run/muster/internal/text"
)

const dumpUsage = `usage: muster dump [--pid PID[,PID...] | --job RUN_ID] [--out DIR] [--json] [--timeout SECONDS]

Shows where workers on this host are, without ending them: the Python stacks of all
threads, equal ones together and those that differ first, so that you see the rank for
which the others wait. Without --pid and --job it looks at all workers of this user,
whether muster or torchrun has started them, job by job.

  --pid PID          a process to look at, or the agent (muster run) whose workers to
                     look at; may be repeated
  --job RUN_ID       the workers of this job (its --rdzv-id)
  --out DIR          write the whole evidence there, as autopsy.txt and autopsy.json: also
                     threads, system calls, sockets, memory and CPU time, the end of
                     stderr, the records of torch's flight recorder
  --json             print the whole evidence as JSON instead, one object for each job
  --timeout SECONDS  give up on what has not answered by then (default 5)

Stacks come from py-spy if it is installed in the workers' environment (pip install
py-spy), or for workers of another user in this command's PATH; otherwise from torch's
worker server, if TORCH_WORKER_SERVER_SOCKET names one and the worker runs under
torch.distributed.elastic.control_plane.worker_main; otherwise from faulthandler, if the
worker was started with MUSTER_DUMP_SIGNAL=SIGUSR1 and has called
faulthandler.register(signal.SIGUSR1).
`

// A dumpRequest is what `muster dump` was asked for.
type dumpRequest struct {
	pids    []int
	job     string
	out     string
	json    bool
	timeout time.Duration
}

// dumpCommand is `muster dump`.
func dumpCommand(ctx context.Context, c *command, args []string) error {
	req := parseDump(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	logger, err := c.logger(c.stderr)
	if err != nil {
		return err
	}
	jobs, err := req.find(ctx)
	errs := []error{err}
	cfg := autopsy.Config{Timeout: req.timeout, Logger: logger}
	for i, job := range jobs {
		report := autopsy.Take(ctx, req.reason(job), job.Workers, cfg)
		if len(jobs) > 1 && report.Gone() {
			continue // it ended meanwhile
		}
		if req.out != "" {
			text, jsonPath, err := report.WriteDir(req.out)
			errs = append(errs, err)
			if err == nil {
				fmt.Fprintf(c.stderr, "muster dump: wrote %s and %s\n", text, jsonPath)
			}
		}
		if i > 0 && !req.json {
			io.WriteString(c.stdout, "\n")
		}
		errs = append(errs, req.show(c.stdout, job, report, len(jobs)))
	}
	return errors.Join(errs...)
}

func parseDump(c *command, args []string) (req dumpRequest) {
	c.Func("pid", "", func(text string) error {
		for pid := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(pid))
			if err != nil || n < 1 {
				c.wrong("--pid %s: want the number of a process", quote(pid))
				continue
			}
			req.pids = append(req.pids, n)
		}
		return nil
	})
	c.StringVar(&req.job, "job", "", "")
	c.StringVar(&req.out, "out", "", "")
	c.BoolVar(&req.json, "json", false, "")
	req.timeout = 5 * time.Second
	c.value("timeout", "seconds, or a time such as 10m, more than 0 and at most 3600s", func(text string) error {
		return parseSeconds(text, &req.timeout, 3600)
	})
	c.options(args)
	if len(req.pids) > 0 && req.job != "" {
		c.wrong("--pid and --job exclude each other")
	}
	return req
}

// find returns the workers that were asked for, and an error for each that is not
// there.
func (req dumpRequest) find(ctx context.Context) ([]autopsy.Job, error) {
	if len(req.pids) > 0 {
		var job autopsy.Job
		var errs []error
		for _, pid := range req.pids {
			if _, isAgent := agentOf(pid); isAgent {
				workers, err := autopsy.WorkersOf(ctx, pid)
				if len(workers) == 0 && err == nil {
					err = fmt.Errorf("the agent with pid %d has no workers now", pid)
				}
				errs = append(errs, err)
				job.Workers = append(job.Workers, workers...)
				continue
			}
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
		return []autopsy.Job{job}, errors.Join(errs...)
	}
	jobs, err := autopsy.Find(ctx)
	if err != nil {
		return nil, err
	}
	if req.job == "" {
		if len(jobs) == 0 {
			return nil, errors.New("no workers of this user run on this host; name a process with --pid")
		}
		return jobs, nil
	}
	var ids []string
	for _, job := range jobs {
		if job.RunID == req.job {
			return []autopsy.Job{job}, nil
		}
		ids = append(ids, quote(job.RunID))
	}
	if ids == nil {
		return nil, fmt.Errorf("job %s has no workers of this user on this host, and neither has another", quote(req.job))
	}
	return nil, fmt.Errorf("job %s has no workers of this user on this host; those that have are %s", quote(req.job), strings.Join(ids, ", "))
}

// reason is the report's title.
func (req dumpRequest) reason(job autopsy.Job) string {
	if job.RunID == "" {
		return "on demand"
	}
	return "on demand, job " + job.RunID
}

// show prints a job's report.
func (req dumpRequest) show(w io.Writer, job autopsy.Job, report *autopsy.Report, jobs int) error {
	if req.json {
		return writeJSON(w, report)
	}
	var b strings.Builder
	if jobs > 1 {
		fmt.Fprintf(&b, "job %s:\n", job.RunID)
	}
	fmt.Fprintf(&b, "%s\n%s", report.Summary(), report.Stacks())
	for _, problem := range report.Problems() {
		fmt.Fprintf(&b, "\n%s\n", problem)
	}
	_, err := io.WriteString(w, text.Lines(b.String()))
	return err
}
