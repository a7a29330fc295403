package runline

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/files/execpath"
)

// adoptCode runs the part of the Python package that adopts. What follows it is a directory with the package, "" for the
// interpreter's own, and muster adopt's arguments.
const adoptCode = `import sys
sys.path[:1] = [sys.argv.pop(1)]
try:
    from muster._adopt import main
except ImportError:
    sys.exit("error: there is no Python package of muster, neither beside this binary nor for " + sys.executable +
             "\nhint: install its wheel into an environment, then run muster adopt there")
sys.exit(main(sys.argv[1:]))
`

// Adopt is `muster adopt`.
func (p Program) Adopt(_ context.Context, args []string) int {
	binary, err := os.Executable()
	if err != nil {
		p.Errorf("%v", err)
		return console.ExitError
	}
	r := reader{lookup: os.LookupEnv, self: p.Self}
	python, _, err := r.python()
	if err == nil {
		python, err = execpath.Find(python, r.lookup)
	}
	if err == nil {
		argv := []string{python, "-c", adoptCode, packageDir(binary)}
		err = fmt.Errorf("%s: %w", python, syscall.Exec(python, append(argv, args...), os.Environ()))
	}
	p.Errorf("%v", err)
	return console.ExitError
}

// packageDir is where the Python package lies beside the binary: in its environment, below pip's --target, or in the
// source tree. It is empty if there is none.
func packageDir(binary string) string {
	root := filepath.Dir(filepath.Dir(binary))
	for _, dir := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", ".", "python"} {
		found, _ := filepath.Glob(filepath.Join(root, dir, "muster", "_adopt.py"))
		if len(found) > 0 {
			return filepath.Dir(filepath.Dir(found[len(found)-1]))
		}
	}
	return ""
}

// sayAdopted is the first line of a job that a program of an adopted environment meant for
// PyTorch's launcher.
func (p Program) sayAdopted() {
	if os.Getenv(envAdopted) != "" {
		fmt.Fprintf(p.Stderr, "muster (adopted): starts this job in place of PyTorch's launcher; MUSTER_ADOPT=0 brings that back\n")
	}
}

// handBack becomes PyTorch's launcher with a command line that muster refuses, such as one that names a plug-in. It
// returns if the process was not that launcher before.
func (p Program) handBack(args []string) {
	python := os.Getenv(envAdopted)
	if !filepath.IsAbs(python) {
		return
	}
	fmt.Fprintf(p.Stderr, "muster (adopted): PyTorch's launcher gets this command line\n")
	environ := []string{"MUSTER_ADOPT=0"}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, envAdopted+"=") && !strings.HasPrefix(entry, "MUSTER_ADOPT=") {
			environ = append(environ, entry)
		}
	}
	err := syscall.Exec(python, append([]string{python, "-m", "torch.distributed.run"}, args...), environ)
	p.Errorf("%s: %v", python, err)
}
