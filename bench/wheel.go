//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// measureWheel times what a person who installed the wheel starts: the command, the
// same through Python, and the import of the package. The floor of a start is the
// binary of `make build`, that of the import an interpreter that imports nothing.
func measureWheel(l *lab) ([]*row, error) {
	bin, err := l.installWheel()
	if err != nil {
		return nil, err
	}
	python := filepath.Join(bin, "python")
	command := &row{What: "start-up of the wheel's command, `muster version` beside `torchrun --help`", Goal: 0.010, Chart: "start of the wheel's command"}
	module := &row{What: "start-up of `python -m muster version` beside `python -m torch.distributed.run --help`", Goal: 0.022,
		Note: "the aim is 20 ms over the floor, the bare binary; what it takes is mostly the interpreter's own start"}
	imports := &row{What: "`import muster` beside `import torch.distributed.launcher.api`, by the interpreter's clock", Goal: 0.030}
	interpreter := &row{What: "for comparison: `python -c pass`, with and without its site module"}
	starts := []struct {
		row       *row
		contender string
		argv      []string
	}{
		{command, muster, []string{filepath.Join(bin, "muster"), "version"}},
		{command, floor, []string{l.musterBin, "version"}},
		{module, muster, []string{python, "-m", "muster", "version"}},
		{module, floor, []string{l.musterBin, "version"}},
		{interpreter, muster, []string{python, "-c", "pass"}},
		{interpreter, floor, []string{python, "-I", "-S", "-c", "pass"}},
	}
	slow := []struct {
		row  *row
		argv []string
	}{
		{command, []string{l.torchrunBin, "--help"}},
		{module, []string{l.python, "-m", "torch.distributed.run", "--help"}},
	}
	for round := -1; round < l.n(20, 3); round++ { // the first warms caches
		for _, s := range starts {
			took, err := l.timed(s.argv)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				s.row.add(s.contender, took)
			}
		}
		took, err := importTime(python, "muster")
		if err != nil {
			return nil, err
		}
		if round >= 0 {
			imports.add(muster, took)
		}
		if l.torchrunBin == "" || round >= l.n(5, 2) {
			continue
		}
		for _, s := range slow {
			took, err := l.timed(s.argv)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				s.row.add(torchrun, took)
			}
		}
		if took, err = importTime(l.python, "torch.distributed.launcher.api"); err != nil {
			return nil, err
		}
		if round >= 0 {
			imports.add(torchrun, took)
		}
	}
	return []*row{command, module, imports, interpreter}, nil
}

// installWheel builds the wheel for this machine and installs it into a new virtual
// environment, whose bin directory it returns.
func (l *lab) installWheel() (string, error) {
	base := l.python
	if base == "" {
		base = "python3"
	}
	dist, dir := filepath.Join(l.dir, "dist"), filepath.Join(l.dir, "wheel")
	python := filepath.Join(dir, "bin", "python")
	for _, argv := range [][]string{
		{"internal/tools/wheel.sh", dist, runtime.GOOS + "/" + runtime.GOARCH},
		{base, "-m", "venv", dir},
		{python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps", "--find-links", dist, "muster-run"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	return filepath.Dir(python), nil
}

// timed runs a command to its end.
func (l *lab) timed(argv []string) (float64, error) {
	j, err := l.start(argv, console{})
	if err != nil {
		return 0, err
	}
	defer j.discard()
	return j.secondsAfter(j.expect(0))
}

// importTime is how long an import takes in a fresh interpreter.
func importTime(python, module string) (float64, error) {
	cmd := exec.Command(python, "-c", "import time; t = time.perf_counter(); import "+module+"; print(time.perf_counter() - t)")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("import %s: %w", module, err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}
