package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
)

// reportCommand is `muster report`.
func reportCommand(_ context.Context, c *command, args []string) error {
	given := ""
	c.attempt(&given)
	list, asJSON, times := c.Bool("list", false, ""), c.Bool("json", false, ""), c.Bool("time", false, "")
	dir := c.atMost(1, args)[0]
	if dir == "" && c.errs == nil {
		c.wrong("no directory is given; give the job's --log-dir, or a run's directory in it")
	}
	if *list && given != "" || *times && (*list || given != "") {
		c.wrong("--list, --attempt and --time exclude each other")
	}
	if err := c.refused(); err != nil {
		return err
	}
	runs, attempt, err := postmortem.Find(dir)
	switch {
	case err != nil:
		return err
	case *list && *asJSON:
		return writeJSON(c.stdout, postmortem.List(runs))
	case *list:
		return postmortem.WriteList(c.stdout, postmortem.List(runs))
	case *times:
		return timeReport(c, runs, *asJSON)
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
		c.note(fmt.Sprintf("this is the newest of %d runs; `muster report --list DIR` shows them all", len(runs)))
	}
	if *asJSON {
		return writeJSON(c.stdout, run)
	}
	return run.WriteText(c.stdout)
}

// timeReport is `muster report --time`.
func timeReport(c *command, runs []postmortem.Dir, asJSON bool) error {
	r, err := postmortem.Time(runs)
	switch {
	case err != nil:
		return err
	case asJSON:
		return writeJSON(c.stdout, r)
	}
	return r.WriteText(c.stdout)
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

func writeJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
