package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/text"
)

const reportUsage = `usage: muster report DIR [--attempt N] [--list] [--json]

Says from its log directory how a job went: how often it was restarted, how long each
attempt ran, the root cause with its traceback or last lines, what the workers did when
they hung, and where the files are. It reads the directories of muster and of torchrun.

  DIR          the job's --log-dir, or a run's directory in it; of several runs the
               newest is shown
  --attempt N  only this attempt: 2, or 2.1 for the second start with that restart count
  --list       list the runs in DIR instead, the newest first
  --json       print everything as one JSON object
`

// A reportRequest is what `muster report` was asked for.
type reportRequest struct {
	dir, attempt string
	list, json   bool
}

// reportCommand is `muster report`.
func reportCommand(_ context.Context, args []string, stdout, stderr io.Writer) int {
	c := command{"report", reportUsage, stdout, stderr}
	req, err := parseReport(args)
	if err != nil {
		return c.refuse(err)
	}
	runs, attempt, err := postmortem.Find(req.dir)
	if err != nil {
		return c.fail(exitError, err)
	}
	if req.list {
		err = req.showList(stdout, runs)
	} else {
		if req.attempt != "" {
			attempt = "attempt_" + req.attempt
		}
		err = req.show(stdout, stderr, runs, attempt)
	}
	if err != nil {
		return c.fail(exitError, err)
	}
	return exitOK
}

func parseReport(args []string) (req reportRequest, err error) {
	flags := flag.NewFlagSet("muster report", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is reported by the caller
	flags.StringVar(&req.attempt, "attempt", "", "")
	flags.BoolVar(&req.list, "list", false, "")
	flags.BoolVar(&req.json, "json", false, "")
	var errs []error
	if req.dir, err = oneArgument(flags, args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return req, err
		}
		errs = append(errs, err)
	}
	if err := checkAttempt(req.attempt); err != nil {
		errs = append(errs, err)
	}
	if req.list && req.attempt != "" {
		errs = append(errs, errors.New("--list and --attempt exclude each other"))
	}
	return req, errors.Join(errs...)
}

// checkAttempt says what is wrong with the value of --attempt.
func checkAttempt(text string) error {
	if text == "" {
		return nil
	}
	if !postmortem.IsAttempt("attempt_" + text) {
		return fmt.Errorf("--attempt %s: want a number such as 1, or 1.2 for a later start with the same restart count", quote(text))
	}
	return nil
}

// showList prints the runs in a directory.
func (req *reportRequest) showList(w io.Writer, runs []postmortem.Dir) error {
	if req.json {
		return writeJSON(w, runs)
	}
	var b strings.Builder
	for _, run := range runs {
		fmt.Fprintf(&b, "%s  %s  %s\n", run.Time.Local().Format("2006-01-02 15:04:05"), text.Count(run.Attempts, "attempt"), text.Line(run.Path, 4096))
	}
	_, err := io.WriteString(w, b.String())
	return err
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
		fmt.Fprintf(stderr, "muster report: this is the newest of %d runs; `muster report --list` shows them all\n", len(runs))
		if n := sameRun(runs); n > 0 {
			fmt.Fprintf(stderr, "muster report: %s the same run id: of the job's other hosts, or earlier\n", map[bool]string{true: "another has", false: fmt.Sprintf("%d others have", n)}[n == 1])
		}
	}
	if req.json {
		return writeJSON(stdout, run)
	}
	return run.WriteText(stdout)
}

// sameRun is how many other runs have the newest one's id.
func sameRun(runs []postmortem.Dir) (n int) {
	for _, run := range runs[1:] {
		if run.RunID == runs[0].RunID {
			n++
		}
	}
	return n
}
