package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

// Report is `muster report`.
func Report(_ context.Context, c *command.Command, args []string) error {
	given := ""
	attemptOption(c, &given)
	list, asJSON, times := c.Bool("list", false, ""), c.Bool("json", false, ""), c.Bool("time", false, "")
	dir := c.AtMost(1, args)[0]
	if dir == "" && c.Errs == nil {
		c.Wrong("no directory is given; give the job's --log-dir, or a run's directory in it")
	}
	if *list && given != "" || *times && (*list || given != "") {
		c.Wrong("--list, --attempt and --time exclude each other")
	}
	if err := c.Refused(); err != nil {
		return err
	}
	runs, attempt, err := postmortem.Find(dir)
	switch {
	case err != nil:
		return err
	case *list && *asJSON:
		return writeJSON(c.Stdout, postmortem.List(runs))
	case *list:
		return postmortem.WriteList(c.Stdout, postmortem.List(runs))
	case *times:
		r, err := postmortem.Time(runs)
		switch {
		case err != nil:
			return err
		case *asJSON:
			return writeJSON(c.Stdout, r)
		}
		return r.WriteText(c.Stdout)
	case given != "":
		attempt = "attempt_" + given
	}
	run, err := postmortem.Read(runs[0].Path)
	if err == nil && attempt != "" {
		err = run.Only(attempt)
	}
	if err != nil {
		return err
	}
	if len(runs) > 1 {
		c.Note(fmt.Sprintf("this is the newest of %d runs; `muster report --list DIR` shows them all", len(runs)))
	}
	if *asJSON {
		return writeJSON(c.Stdout, run)
	}
	return run.WriteText(c.Stdout)
}

// attemptOption is the option --attempt.
func attemptOption(c *command.Command, v *string) {
	const wanted = "a number such as 1, or 1.2 for a later start with the same restart count"
	c.Value("attempt", wanted, func(text string) error {
		if *v = text; text != "" && !postmortem.IsAttempt("attempt_"+text) {
			return strconv.ErrSyntax
		}
		return nil
	})
}

func writeJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
