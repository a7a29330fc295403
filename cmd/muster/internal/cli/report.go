package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

const reportUsage = `usage: muster report DIR [--attempt N] [--list] [--json]

Says from its log directory how a job went: how often it was restarted, how long each
attempt ran, the root cause with its traceback or last lines, what the workers did when
they hung, and where the files are. It reads the directories of muster and of torchrun.

  DIR          the job's --log-dir, or a run's directory in it; of several runs the
               newest is shown
  --attempt N  only this attempt: 2, or 2.1 for the second start with that restart count
  --list       list the runs in DIR instead, the newest first, with how each ended
  --json       print everything as one JSON object
`

// A reportRequest is what `muster report` was asked for.
type reportRequest struct {
	dir, attempt string
	list, json   bool
}

// reportCommand is `muster report`.
func reportCommand(_ context.Context, c *command, args []string) error {
	req := parseReport(c, args)
	if err := c.refused(); err != nil {
		return err
	}
	runs, attempt, err := postmortem.Find(req.dir)
	switch {
	case err != nil:
		return err
	case req.list:
		return req.showList(c.stdout, runs)
	case req.attempt != "":
		attempt = "attempt_" + req.attempt
	}
	return req.show(c.stdout, c.stderr, runs, attempt)
}

func parseReport(c *command, args []string) (req reportRequest) {
	c.attempt(&req.attempt)
	c.BoolVar(&req.list, "list", false, "")
	c.BoolVar(&req.json, "json", false, "")
	req.dir = c.directory(args)
	if req.list && req.attempt != "" {
		c.wrong("--list and --attempt exclude each other")
	}
	return req
}

// attempt is the option --attempt.
func (c *command) attempt(v *string) {
	const wanted = "a number such as 1, or 1.2 for a later start with the same restart count"
	c.value("attempt", wanted, func(text string) error {
		if *v = text; text != "" && !postmortem.IsAttempt("attempt_"+text) {
			return strconv.ErrSyntax
		}
		return nil
	})
}

// showList prints the runs in a directory.
func (req *reportRequest) showList(w io.Writer, runs []postmortem.Dir) error {
	list := postmortem.List(runs)
	if req.json {
		return writeJSON(w, list)
	}
	return postmortem.WriteList(w, list)
}

func writeJSON(w io.Writer, v any) error {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(body, '\n'))
	return err
}

// show prints the newest run. The others are named on stderr.
func (req *reportRequest) show(stdout, stderr io.Writer, runs []postmortem.Dir, attempt string) error {
	run, err := postmortem.Read(runs[0].Path)
	if err != nil {
		return err
	}
	if attempt != "" {
		if err := run.Only(attempt); err != nil {
			return err
		}
	}
	if len(runs) > 1 {
		fmt.Fprintf(stderr, "muster report: this is the newest of %d runs; `muster report --list DIR` shows them all\n",
			len(runs))
	}
	if req.json {
		return writeJSON(stdout, run)
	}
	return run.WriteText(stdout)
}
