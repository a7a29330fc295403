package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/health"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wire/http10"
)

// A logsRequest is what `muster logs` was asked for.
type logsRequest struct {
	postmortem.Selection
	dir, attempt               string
	rankText                   string
	follow, prefixed, collapse bool
	lines                      int // negative: all
}

// Logs is `muster logs`. With --follow it runs until ctx is done.
func Logs(ctx context.Context, c *command.Command, args []string) error {
	req := parseLogs(c, args)
	logger := c.Logger(c.Stderr)
	if err := c.Refused(); err != nil {
		return err
	}
	j, err := req.findJob(ctx)
	if err != nil {
		return err
	}
	if j != nil {
		return req.stream(ctx, c, j)
	}
	return req.run(ctx, c, logger)
}

func parseLogs(c *command.Command, args []string) (req logsRequest) {
	c.Value("rank", "ranks and ranges such as 3,5-7", func(given string) (err error) {
		if req.rankText = given; given != "" {
			req.Ranks, err = text.ParseRankSet(given)
		}
		return err
	})
	c.BoolVar(&req.LocalRanks, "local-rank", false, "")
	attemptOption(c, &req.attempt)
	req.Stdout, req.Stderr = true, true
	c.Value("stream", "stdout, stderr or both", func(text string) error {
		req.Stdout, req.Stderr = text != "stderr", text != "stdout"
		if !slices.Contains([]string{"stdout", "stderr", "both"}, text) {
			return strconv.ErrSyntax
		}
		return nil
	})
	req.lines = -1
	c.Value("lines", "a number, 0 or more", func(text string) error {
		n, err := strconv.ParseUint(text, 10, 31)
		if req.lines = int(n); text == "" {
			req.lines, err = -1, nil
		}
		return err
	})
	c.Var(c.Lookup("lines").Value, "n", "")
	c.BoolVar(&req.follow, "follow", false, "")
	c.BoolVar(&req.follow, "f", false, "")
	c.BoolVar(&req.prefixed, "prefix", false, "")
	c.BoolVar(&req.collapse, "collapse", false, "")
	given := c.AtMost(1, args)
	if req.dir = given[0]; len(given) > 2 && req.LocalRanks && req.Ranks == nil {
		c.Errs = []error{errors.New("--local-rank has no value of its own; write --rank N --local-rank")}
	}
	return req
}

// findJob returns the agent to ask for the lines of a job on several hosts. Else it puts the
// directory of a job in the place of its name.
func (req *logsRequest) findJob(ctx context.Context) (*job, error) {
	if _, err := os.Lstat(req.dir); errors.Is(err, fs.ErrNotExist) && strings.Contains(req.dir, ":") {
		if _, _, err := health.ParseAddr(req.dir); err == nil {
			return &job{addr: req.dir}, nil
		}
	}
	jobs, err := jobOrDir(ctx, req.dir)
	switch {
	case jobs == nil || err != nil:
		return nil, err
	case jobs[0].state != nil && jobs[0].state.Job.MaxHosts > 1 && req.attempt == "" && !req.LocalRanks:
		return &jobs[0], nil
	}
	req.dir, err = logDirOf(jobs)
	return nil, err
}

// jobOrDir returns the agents of the job that is meant; nil if that is a directory. What is
// there as a directory is not a job's name.
func jobOrDir(ctx context.Context, meant string) ([]job, error) {
	if _, err := os.Lstat(meant); meant != "" && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	jobs, err := theJob(ctx, meant, false)
	switch isPath := strings.ContainsRune(meant, filepath.Separator); {
	case jobs == nil && isPath:
		return nil, nil
	case jobs == nil && meant != "":
		err = fmt.Errorf("there is no directory %s, and %w", console.Quote(meant), err)
	}
	return jobs, err
}

// logDirOf is the log directory of a job with one agent on this host.
func logDirOf(jobs []job) (string, error) {
	switch {
	case len(jobs) > 1:
		return "", chooseOne(jobs, jobs[0].runID())
	case jobs[0].state == nil:
		return "", jobs[0].err
	case !filepath.IsAbs(jobs[0].state.Job.LogDir):
		return "", fmt.Errorf("%s keeps no log files; start it with another --log-dir than /dev/null", jobs[0].name())
	}
	return jobs[0].state.Job.LogDir, nil
}

// stream prints what the workers of all hosts have written, and follows if that is asked for.
func (req *logsRequest) stream(ctx context.Context, c *command.Command, j *job) error {
	if req.attempt != "" || req.LocalRanks {
		return errors.New("--attempt and --local-rank are for the log directory of one host; name that, or leave them out")
	}
	conn, err := j.dial(ctx)
	if err != nil {
		return fmt.Errorf("ask %s: %w", j.name(), err)
	}
	defer conn.Close()
	q := health.LogQuery{
		Stdout: req.Stdout, Stderr: req.Stderr, Ranks: req.rankText, Lines: req.lines, Round: -1,
		Once: !req.follow, Together: req.collapse,
	}
	in, stop, err := http10.Stream(ctx, conn, q.Path())
	defer stop()
	one := len(req.Ranks) == 1 && req.Ranks[0][0] == req.Ranks[0][1] && req.Stdout != req.Stderr
	printed := false
	if err == nil {
		printed, err = postmortem.PrintFrames(in, req.printing(c.Stdout, one), req.follow, c.Note)
	}
	switch {
	case ctx.Err() != nil:
		return nil // interrupted
	case err != nil:
		return fmt.Errorf("ask %s: %w", j.name(), err)
	case req.follow:
		c.Note(j.howEnded(ctx))
	case !printed && req.Ranks != nil:
		return fmt.Errorf("%s has no lines of rank %s in files; muster ps shows its ranks, and workers write to files "+
			"with --redirects 3 or --tee 3", j.name(), console.Printable(req.rankText))
	case !printed:
		return fmt.Errorf("the workers of %s have written nothing to log files; they do with --redirects 3, or with "+
			"--tee 3 to the console as well", j.name())
	}
	return nil
}

// howEnded says what became of a job whose agent sends no more lines.
func (j *job) howEnded(ctx context.Context) string {
	if j.state == nil {
		return "the agent at " + console.Printable(j.addr) + " has ended"
	}
	if how := postmortem.Ending(ctx, j.state.Job.LogDir); how != "" {
		return how
	}
	return "the agent has ended, on this host"
}

// printing says how lines are printed, of one stream or of several.
func (req *logsRequest) printing(w io.Writer, one bool) postmortem.Printing {
	prefix := func(ranks string, stderr bool) string {
		switch {
		case one && !req.prefixed:
			return ""
		case stderr:
			return "[" + ranks + " err]: "
		}
		return "[" + ranks + "]: "
	}
	return postmortem.Printing{Writer: w, Collapse: req.collapse, Prefix: prefix}
}

// run prints, and follows if that is asked for.
func (req *logsRequest) run(ctx context.Context, c *command.Command, logger *slog.Logger) error {
	run, attempt, err := newestRun(c, req.dir)
	if req.attempt != "" {
		attempt = "attempt_" + req.attempt
	}
	if err == nil && attempt != "" {
		err = run.Only(attempt)
	}
	if err != nil {
		return err
	}
	a := run.Last()
	switch {
	case a == nil && req.follow && run.Outcome == postmortem.Running:
		c.Note("waits for the first workers of " + text.Line(run.Dir, 4096))
		a = &postmortem.Attempt{}
	case a == nil:
		return fmt.Errorf("no workers were started in %s; muster report shows what became of it", text.Line(run.Dir, 4096))
	}
	if len(a.Workers) > 0 && req.Ranks != nil && !req.LocalRanks && !a.KnowsRanks() {
		c.Note(text.Line(run.Dir, 4096) + " does not tell global ranks: --rank is taken for local ranks")
		req.LocalRanks = true
	}
	streams := a.Streams(req.Selection)
	if !req.follow {
		if len(streams) == 0 {
			return req.none(a)
		}
		return postmortem.Print(req.printing(c.Stdout, len(streams) < 2), streams, req.lines)
	}
	wanted := postmortem.Selection{Stdout: req.Stdout, Stderr: req.Stderr}
	if len(a.Workers) > 0 && len(a.Streams(wanted)) == 0 {
		c.Note(req.none(a).Error())
	}
	one := len(a.Workers) > 0 && len(streams) < 2 && req.Ranks != nil // else there are workers to come
	return postmortem.Follow(ctx, postmortem.FollowConfig{
		Dir: run.Dir, Attempt: a.Name, Only: attempt != "", Selection: req.Selection, Lines: req.lines,
		Printing: req.printing(c.Stdout, one), Note: c.Note, Logger: logger,
	})
}

// none says why there is nothing to print.
func (req *logsRequest) none(a *postmortem.Attempt) error {
	var ranks []string
	files := false
	for _, w := range a.Workers {
		ranks = append(ranks, strconv.Itoa(req.Rank(&w)))
		files = files || w.Stdout != "" && req.Stdout || w.Stderr != "" && req.Stderr
	}
	switch {
	case len(ranks) == 0:
		return fmt.Errorf("%s holds no workers", a.Dir)
	case files:
		return fmt.Errorf("none of these ranks is in %s; choose from %s", a.Dir, strings.Join(ranks, ", "))
	}
	return fmt.Errorf("the workers of %s wrote to no files; start the job with --redirects 3, or --tee 3 to see their "+
		"output on the console as well", a.Dir)
}
