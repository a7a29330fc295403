package runline

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/cmd/muster/internal/doctor"
	"github.com/muster-run/muster/internal/files/execpath"
	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/launch"
)

// otherLaunchers are programs and modules that start workers, as muster does.
var otherLaunchers = []string{Torchrun, "torch.distributed.run", "torch.distributed.launch", "accelerate",
	"accelerate.commands.launch", "deepspeed", "deepspeed.launcher.runner", "muster"}

// command fills what a worker runs: Entrypoint, Args and Title.
// Source: config_from_args in torch/distributed/run.py, and for the title
// _get_entrypoint_name in torch/distributed/launcher/api.py.
func (r *reader) command(cfg *launch.Config) {
	if !r.hasScript {
		return // reported by the caller
	}
	cfg.Workers.TorchrunMacros = !r.ask
	module, noPython, runPath := r.flag("module"), r.flag("no-python"), r.flag("run-path")
	nested := slices.Contains(otherLaunchers, filepath.Base(r.script))
	if nested {
		r.warn("%s starts workers of its own, as each worker would here; give muster the program that it starts", r.script)
	}
	if o := r.stray; o != nil && r.ask && !r.isGiven(o.name) && !noPython && !nested {
		r.warn("--%s after the script goes to the script; if it is for muster, write it before %s; "+
			"if not, write -- after %s", o.name, r.script, r.script)
	}
	if noPython && !runPath {
		if module {
			r.errs = append(r.errs, console.Refusal(errors.New("Don't use both the '--no-python' flag and the '--module' flag at the same time."), //lint:ignore ST1005 torchrun's words
				"--no-python and --module exclude each other; leave one of them out"))
		}
		cfg.Workers.Entrypoint, cfg.Workers.Args, cfg.Workers.Title = r.script, r.args, r.script
		return
	}
	python, _, err := r.python()
	if err != nil {
		r.errs = append(r.errs, pythonError{err})
	}
	cfg.Workers.Entrypoint = python
	if cfg.HangTimeout != 0 && cfg.AutopsyTimeout > 0 && doctor.PySpy(python, r.lookup) == "" {
		r.warn("--hang-timeout: there is no py-spy, so the rank that makes the others wait may stay unknown; " +
			"pip install py-spy")
	}
	switch {
	case runPath:
		cfg.Workers.Args = slices.Concat([]string{"-u", "-c", runPathCode, r.script}, r.args)
		cfg.Workers.Title = "run_script_path"
	case module:
		isPath := strings.HasSuffix(r.script, ".py") || strings.Contains(r.script, "/")
		if info, err := os.Stat(r.script); r.ask && isPath && err == nil && info.Mode().IsRegular() {
			r.fail("-m takes the name of a module, and %s is a file; leave -m out to run the file", console.Quote(r.script))
		}
		cfg.Workers.Args = slices.Concat([]string{"-u", "-m", r.script}, r.args)
	default:
		cfg.Workers.Args = slices.Concat([]string{"-u", r.script}, r.args)
	}
	if cfg.Workers.Title == "" {
		i := slices.IndexFunc(cfg.Workers.Args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
		cfg.Workers.Title = cfg.Workers.Entrypoint
		if i >= 0 {
			cfg.Workers.Title = cfg.Workers.Args[i]
		}
	}
	if !module || runPath {
		r.checkScript(cfg)
	}
}

// A pythonError says that there is no interpreter for the script.
type pythonError struct{ error }

// checkScript reports a script that is not there once, rather than as the
// failure of every worker. What follows an unknown option may be its argument
// rather than the script, and a leading dash is an option of Python.
func (r *reader) checkScript(cfg *launch.Config) {
	if r.unknown || strings.HasPrefix(r.script, "-") {
		return
	}
	last := ""
	for rank := range cfg.NprocPerNode {
		path := text.Substitute([]string{r.script}, rank, nil)[0]
		if path == last || r.ask && strings.Contains(path, "${") {
			return // the same for all ranks, or the rest is known at the start only
		}
		last = path
		_, err := os.Stat(path)
		switch {
		case err == nil:
			continue
		case errors.Is(err, fs.ErrNotExist):
			hint := r.scriptHint()
			plain := "there is no file " + console.Quote(path) + hint
			if dir, err := os.Getwd(); hint == "" && err == nil && !filepath.IsAbs(path) {
				plain += " in " + dir + "; give the path of the script"
			}
			r.errs = append(r.errs, console.Refusal(fmt.Errorf("training_script %s: no such file%s",
				console.Quote(path), hint), plain))
		default:
			r.fail("training_script %s: %w", console.Quote(path), err)
		}
		return
	}
}

// scriptHint guesses what a script that is not there was meant to be.
func (r *reader) scriptHint() string {
	if strings.Contains(r.script, "/") || strings.HasSuffix(r.script, ".py") {
		return ""
	}
	if _, err := execpath.Find(r.script, r.lookup); err == nil {
		return "; use --no-python to run a program that is not a Python script"
	}
	return "; use -m to run a module"
}

// What the Python package says to the muster that it starts, and not to workers: the interpreter that it runs in,
// its directory for the files of the job, and that the program wanted PyTorch's launcher, see adopted.
const (
	envInterpreter = "MUSTER_INTERPRETER"
	envFiles       = "MUSTER_FILES"
	envAdopted     = "MUSTER_ADOPTED"
)

// python chooses the interpreter: envInterpreter; PYTHON_EXEC; the one beside the program, or the
// link through which we were started as torchrun, if that is a virtual environment; the
// active virtual or conda environment; the one beside the link anywhere; PATH.
// (torchrun uses PYTHON_EXEC or the interpreter that runs itself.)
// It returns where that is from, too.
func (r *reader) python() (path, from string, err error) {
	if python, _ := r.lookup(envInterpreter); python != "" {
		return python, "the Python that started muster", nil
	}
	if python, ok := r.lookup("PYTHON_EXEC"); ok {
		if python == "" {
			return "", "", errors.New("PYTHON_EXEC is set but empty: name an interpreter or unset it")
		}
		return python, "PYTHON_EXEC", nil
	}
	type place struct{ dir, from string }
	var places []place
	beside := place{r.linkDir(), "the directory of muster"}
	if beside.dir != "" && isEnvironment(filepath.Dir(beside.dir)) {
		places = append(places, beside)
	}
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir, _ := r.lookup(name); dir != "" {
			places = append(places, place{filepath.Join(dir, "bin"), name})
		}
	}
	if beside.dir != "" {
		places = append(places, beside)
	}
	search, _ := r.lookup("PATH")
	var looked []string
	for _, p := range append(places, place{"", "PATH"}) {
		for _, name := range []string{"python3", "python"} {
			if path, err = execpath.Find(filepath.Join(p.dir, name), r.lookup); err == nil {
				return path, p.from, nil
			}
		}
		looked = append(looked, cmp.Or(p.dir, "PATH="+search))
	}
	return "", "", errors.New("no Python interpreter: looked for python3 and python in " +
		strings.Join(looked, ", ") + "; set PYTHON_EXEC to one, or use --no-python for other programs")
}

// linkDir is the directory of the link named torchrun that we were started
// through, or of the program if that is in an environment, where pip has put it; ""
// if we were started otherwise.
func (r *reader) linkDir() string {
	path, err := execpath.Find(r.self, r.lookup)
	if err != nil {
		return ""
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil || filepath.Base(r.self) != Torchrun && !isEnvironment(filepath.Dir(dir)) {
		return ""
	}
	return dir
}

// isEnvironment reports whether dir is a virtual environment or one of conda's.
func isEnvironment(dir string) bool {
	_, venv := os.Stat(filepath.Join(dir, "pyvenv.cfg"))
	_, conda := os.Stat(filepath.Join(dir, "conda-meta"))
	return venv == nil || conda == nil
}

// runPathCode is what --run-path has Python run: the script under runpy, its
// uncaught exception written to TORCHELASTIC_ERROR_FILE in the form that
// PyTorch's @record writes. It needs no PyTorch. As in torchrun, where the
// script runs in a copy of the launcher, the current directory is not on
// sys.path; nor is it when this imports modules.
//
// A thread of torch's that wants the interpreter while it ends aborts the process:
// gloo's, for a little while after the last collective operation. torchrun's workers
// wait at the end until the agent has polled all of them, up to 0.1 s by default; so
// does this, after whatever the script does at exit.
//
//go:embed runpath.py
var runPathCode string
