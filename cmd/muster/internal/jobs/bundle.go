package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	out := ""
	c.Text("out", &out)
	c.Var(c.Lookup("out").Value, "o", "")
	dir := c.AtMost(1, args)[0]
	if err := c.Refused(); err != nil {
		return err
	}
	live, err := jobOrDir(ctx, dir)
	if err == nil && live != nil {
		dir, err = logDirOf(live)
	}
	if err != nil {
		return err
	}
	run, _, err := newestRun(c, dir)
	if err != nil {
		return err
	}
	name := "muster-" + strings.Map(func(r rune) rune {
		if console.IsPlain(r) && !strings.ContainsRune("/:=,@%", r) {
			return r
		}
		return '_'
	}, filepath.Base(run.Dir))
	out = cmp.Or(out, name+".tar.gz")
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // only this user may read it
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already; remove it, or name another file with --out", console.Printable(out))
	}
	if err != nil {
		return err
	}
	a := newArchive(f, name)
	err = errors.Join(a.bundle(ctx, run, live), a.close(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(out))
	}
	_, err = fmt.Fprintf(c.Stdout,
		"Wrote %s. Look at it before you hand it on: it includes the workers' output unchanged.\n", console.Printable(out))
	return err
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

// bundle adds all that explains a job, the newest attempt first. live has its agent, or nobody if that was not asked for.
func (a *archive) bundle(ctx context.Context, run *postmortem.Run, live []job) error {
	a.print("report.txt", run.WriteText)
	a.print("report.json", func(w io.Writer) error { return writeJSON(w, run) })
	a.add("versions.txt", []byte(version.Text()), time.Now(), "")
	env, from := os.Environ(), "of this command"
	if live != nil {
		if b, err := procfs.Environ(live[0].PID); err == nil && len(b) > 0 {
			env, from = strings.Split(strings.Trim(string(b), "\x00"), "\x00"), "of the job's agent"
		}
	}
	a.add("environment.txt", []byte(shownEnvironment(env)), time.Now(), from)
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
	root, err := os.OpenRoot(run.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	a.files(root, ".")
	for _, at := range slices.Backward(run.Attempts) {
		a.files(root, at.Name)
	}
	return nil
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
