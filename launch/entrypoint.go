package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-run/muster/internal/execpath"
	"github.com/muster-run/muster/process"
)

// checkWorker says why no worker could run.
func (cfg *Config) checkWorker() error {
	switch {
	case cfg.Workers.Func == "" && cfg.Workers.Input != nil:
		return errors.New("an input is for functions; a program has arguments")
	case cfg.Workers.Func == "":
		return checkEntrypoint(cfg.Workers.Entrypoint, cfg.LookupEnv)
	case cfg.Workers.Entrypoint != "" || len(cfg.Workers.Args) > 0:
		return errors.New("a worker needs an entrypoint or a function, and not both")
	}
	return process.CheckFunc(cfg.Workers.Func)
}

func checkEntrypoint(name string, lookup func(string) (string, bool)) error {
	_, err := execpath.Find(name, lookup)
	from, hint := "", "; give the path of a program"
	if python, _ := lookup("PYTHON_EXEC"); python == name {
		from, hint = "PYTHON_EXEC: ", "; set PYTHON_EXEC to an interpreter, or unset it"
	}
	info, missing := os.Stat(name)
	switch {
	case err == nil:
		return nil
	case name == "":
		return errors.New("no program is given; give the path of one")
	case !errors.Is(err, fs.ErrNotExist) && (missing != nil || !info.IsDir()):
		hint = "; chmod +x it, or let an interpreter run it"
	case errors.Is(err, fs.ErrNotExist) && missing == nil:
		hint = "; write ./" + name + " for the file in this directory"
	}
	return fmt.Errorf("%scannot run %s: %w%s", from, name, err, hint)
}
