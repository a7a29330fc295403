package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/version"
	"github.com/muster-run/muster/internal/wire/auth"
)

// Bundle is `muster bundle`.
func Bundle(ctx context.Context, c *command.Command, args []string) error {
	out, tail := "", int64(64<<10)
	c.Text("out", &out)
	c.Var(c.Lookup("out").Value, "o", "")
	c.Value("tail", "a size such as 64K, at most 8M", func(text string) (err error) {
		if tail, err = parseSize(text); tail > maxBundleFile {
			err = strconv.ErrRange
		}
		return err
	})
	dir := c.AtMost(1, args)[0]
	if err := c.Refused(); err != nil {
		return err
	}
	live, err := jobOrDir(ctx, dir)
	if err != nil {
		return err
	}
	runs, missing, err := bundled(c, dir, live)
	if err != nil {
		return err
	}
	var called string
	if len(runs) == 1 {
		called = filepath.Base(runs[0].Dir)
	} else {
		called = live[0].runID()
	}
	name := "muster-" + strings.Map(func(r rune) rune {
		if console.IsPlain(r) && !strings.ContainsRune("/:=,@%", r) {
			return r
		}
		return '_'
	}, called)
	out = cmp.Or(out, name+".tar.gz")
	f, err := command.CreateNew(out, "--out", 0o600) // only this user may read it
	if err != nil {
		return err
	}
	a := newArchive(f, name)
	for _, why := range missing {
		a.omit("report.txt", why)
	}
	err = errors.Join(a.bundle(ctx, runs, live, tail), a.close(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(out))
	}
	_, err = fmt.Fprintf(c.Stdout,
		"Wrote %s. Look at it before you hand it on: it includes the workers' output unchanged.\n", console.Printable(out))
	return err
}

// parseSize reads a number of bytes, with K or M for powers of 1024.
func parseSize(text string) (int64, error) {
	digits, shift := strings.ToUpper(text), 0
	if s, ok := strings.CutSuffix(digits, "K"); ok {
		digits, shift = s, 10
	} else if s, ok := strings.CutSuffix(digits, "M"); ok {
		digits, shift = s, 20
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return int64(n) << shift, err
}

// bundled returns the runs in a directory, or of a job's agents, and why there are no more.
func bundled(c *command.Command, dir string, live []job) (runs []*postmortem.Run, missing []error, err error) {
	if live == nil {
		run, _, err := newestRun(c, dir)
		return []*postmortem.Run{run}, nil, err
	}
	for i := range live {
		dir, err := logDirOf(live[i : i+1])
		var run *postmortem.Run
		if err == nil {
			run, _, err = newestRun(c, dir)
		}
		if err != nil { // it keeps no files
			missing = append(missing, err)
			continue
		}
		runs = append(runs, run)
	}
	return runs, missing, nil
}

// newestRun reads the newest run in a directory. attempt is as of postmortem.Find.
func newestRun(c *command.Command, dir string) (run *postmortem.Run, attempt string, err error) {
	found, attempt, err := postmortem.Find(dir)
	if err != nil {
		return nil, "", err
	}
	if len(found) > 1 {
		c.Note(fmt.Sprintf("this is %s, the newest of %d runs", text.Line(found[0].Path, 4096), len(found)))
	}
	run, err = postmortem.Read(found[0].Path)
	return run, attempt, err
}

// bundle adds all that explains a job. live has its agents, or nobody if that was not asked for.
func (a *archive) bundle(ctx context.Context, runs []*postmortem.Run, live []job, tail int64) error {
	each := func(add func(*postmortem.Run)) {
		for _, run := range runs {
			if len(runs) > 1 { // each has a directory of its own
				a.of = filepath.Base(run.Dir)
			}
			add(run)
		}
		a.of = ""
	}
	each(func(run *postmortem.Run) {
		a.print("report.txt", run.WriteText)
		a.print("report.json", func(w io.Writer) error { return writeJSON(w, run) })
	})
	a.add("versions.txt", []byte(version.Text()), a.time, "")
	env, from := os.Environ(), "of this command"
	if live != nil {
		if b, err := procfs.Environ(live[0].PID); err == nil && len(b) > 0 {
			env, from = strings.Split(strings.Trim(string(b), "\x00"), "\x00"), "of the job's agent"
		}
	}
	a.add("environment.txt", []byte(shownEnvironment(env)), a.time, from)
	if live != nil {
		a.print("state.json", func(w io.Writer) error {
			whole := job{Agent: live[0].Agent} // live has what finds a job
			if whole.fetch(ctx, false); whole.err != nil {
				return whole.err
			}
			return writeJSON(w, whole.state)
		})
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	each(func(run *postmortem.Run) {
		root, err := os.OpenRoot(run.Dir)
		if err != nil {
			a.omit(".", err)
			return
		}
		defer root.Close()
		a.run(root, run, tail)
	})
	return nil
}

// run adds what a run's directory holds, the newest attempt first.
func (a *archive) run(root *os.Root, run *postmortem.Run, tail int64) {
	a.files(root, ".", maxBundleFile, ".jsonl")
	failed := 0
	for i, at := range slices.Backward(run.Attempts) {
		a.files(root, at.Name, maxBundleFile, ".json", ".txt", ".pickle")
		logs := i == len(run.Attempts)-1
		if at.Outcome == postmortem.Failed || len(at.Failures) > 0 {
			failed++
			logs = logs || failed <= 2
		}
		if logs {
			a.files(root, at.Name, tail, ".log")
		}
		for _, w := range at.Workers {
			dir := filepath.Join(at.Name, filepath.Base(w.Dir))
			a.files(root, dir, maxBundleFile, ".json")
			if logs {
				a.files(root, dir, tail, ".log")
			}
		}
	}
}

// shownVariables are what the names of variables begin with that say how a job runs.
var shownVariables = []string{
	"MUSTER_", "PET_", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "NVIDIA_", "OMP_", "MKL_",
	"KMP_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH=", "LD_", "LOGLEVEL=", "MASTER_", "NODE_RANK=",
	"WORLD_SIZE=", "RANK=", "LOCAL_RANK=", "SLURM_", "PMI", "OMPI_", "LSB_", "PBS_", "KUBERNETES_",
	"XDG_RUNTIME_DIR=", "TMPDIR=",
}

// shownEnvironment is the variables of an environment that say how a job runs, without
// secrets, as muster explain hides them.
func shownEnvironment(env []string) string {
	var b strings.Builder
	for _, entry := range slices.Sorted(slices.Values(env)) {
		if !slices.ContainsFunc(shownVariables, func(begin string) bool { return strings.HasPrefix(entry, begin) }) {
			continue
		}
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "PET_RDZV_CONF":
			entry = name + "=" + auth.HideSecrets(value)
		case "MUSTER_ON_EVENT", "MUSTER_HEALTH_CHECK": // a webhook's address is one, too
			entry = name + "=***"
		}
		fmt.Fprintln(&b, console.Printable(text.CommandLine([]string{entry})))
	}
	return b.String()
}
