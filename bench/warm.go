//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Contenders of the warm rows, besides torchrun and muster, which is muster with --warm.
const (
	cold = "muster without `--warm`"
	nvrx = "NVRx's ft_launcher"
)

const nvrxPackage = "nvidia-resiliency-ext==0.4.1"

// ownStore has rank 0 of each attempt serve the workers' store. Otherwise torchrun's
// restarted workers often fail: D1 in docs/differences.md.
const ownStore = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"

// warmLab is what the warm rows share.
type warmLab struct {
	*lab
	dir        string // the user's cache, where muster keeps what it learns
	ftLauncher string // "" where it cannot be had
	lacking    string // why
}

// measureWarm starts and restarts workers that import torch. What they import is known, from
// the job before.
func measureWarm(l *lab) ([]*row, error) {
	if l.python == "" || l.musterBin == "" {
		return nil, nil
	}
	w, err := newWarmLab(l)
	if err != nil {
		return nil, err
	}
	restart := &row{What: "a worker's death → first optimizer step of the restarted DDP job, 2 workers, `--warm`", Goal: 0.250,
		Chart: "death → first step, `--warm`", Bar: "a worker dies → DDP trains again (--warm)", Note: "torchrun and ft_launcher (" + nvrxPackage + ") with " + ownStore + ", since their restarts fail otherwise ([D1](differences.md))"}
	slow := &row{What: "the same, 4 ms more for each call that opens or looks at a file of Python's modules", Goal: 0.300,
		Note: "a preloaded library delays these calls in all processes, from the death on; about 30 of those of a warm restart are PyTorch's: init_process_group reads what each installed package registers"}
	start := &row{What: "start → first optimizer step of 8 DDP workers, `--warm`, list known", Chart: "start → first step of 8, `--warm`",
		Note: "the aim is a third of " + cold}
	idle := &row{What: "memory of 8 idle workers that have imported torch, `--warm` (PSS)", Unit: size, Chart: "memory of 8 workers, `--warm`",
		Note: "of all processes but the launcher, the template among them; the aim is 60 % less than " + cold}

	library, err := w.slowLibrary()
	if err != nil {
		slow.Note = "not measured: " + err.Error()
	}
	if _, err := w.train(muster, 2, 0); err != nil { // learns
		return nil, err
	}
	for _, m := range []struct {
		row    *row
		rounds int
		once   func(contender string) ([]float64, error)
	}{
		{restart, l.n(2, 1), func(c string) ([]float64, error) { return w.restarts(c, 3) }},
		{slow, 1, func(c string) ([]float64, error) {
			if library == "" || l.quick && c != muster { // each of the others takes more than a minute
				return nil, nil
			}
			from := filepath.Join(w.dir, "slow")
			defer os.Remove(from)
			return w.restarts(c, 1, "LD_PRELOAD="+library, "SLOW_FROM="+from)
		}},
		{start, l.n(2, 1), w.start},
		{idle, 1, w.idle},
	} {
		for range m.rounds {
			for _, c := range w.contenders() {
				samples, err := m.once(c)
				switch {
				case err == nil:
					m.row.add(c, samples...)
				case c == nvrx:
					w.ftLauncher, w.lacking = "", "does not run here: "+err.Error()
				default:
					return nil, fmt.Errorf("%s: %w", c, err)
				}
			}
		}
	}
	start.Goal, idle.Goal = start.value(cold)/3, idle.value(cold)*0.4
	rows := []*row{restart, slow, start, idle}
	for _, r := range rows {
		r.Note += fmt.Sprintf("; %s %s", cold, r.cell(cold))
		if w.lacking == "" {
			r.Note += fmt.Sprintf(", %s %s", nvrx, r.cell(nvrx))
		} else if r == restart {
			r.Note += ", " + nvrx + " " + w.lacking
		}
	}
	return rows, nil
}

func newWarmLab(l *lab) (*warmLab, error) {
	w := &warmLab{lab: l}
	var err error
	if w.dir, err = os.MkdirTemp(l.dir, "warm"); err != nil {
		return nil, err
	}
	if w.ftLauncher, err = l.installNVRx(filepath.Join(w.dir, "nvrx")); err != nil {
		w.lacking = "cannot be installed: " + err.Error()
	}
	return w, nil
}

// contenders in the order in which they take turns.
func (w *warmLab) contenders() []string {
	all := []string{muster, cold, torchrun}
	if w.ftLauncher != "" {
		all = append(all, nvrx)
	}
	return all
}

// launch starts a script of bench/workload with a contender.
func (w *warmLab) launch(c string, nproc, restarts int, env []string, script ...string) (*job, error) {
	argv := append([]string{"/usr/bin/env", "PYTHON_EXEC=" + w.python, "XDG_CACHE_HOME=" + w.dir}, env...)
	if c == torchrun || c == nvrx {
		argv = append(argv, ownStore)
	}
	switch c {
	case muster:
		argv = append(argv, w.musterBin, "run", "--warm")
	case cold:
		argv = append(argv, w.musterBin, "run")
	case torchrun:
		argv = append(argv, w.torchrunBin)
	case nvrx:
		argv = append(argv, w.ftLauncher)
	}
	path, err := filepath.Abs(filepath.Join("bench/workload", script[0]))
	if err != nil {
		return nil, err
	}
	argv = append(argv, "--standalone", fmt.Sprintf("--nproc-per-node=%d", nproc), fmt.Sprintf("--max-restarts=%d", restarts), path)
	return w.lab.start(append(argv, script[1:]...), console{})
}

// train runs warm.py to its end, and returns what rank 0 notes, and when the job began.
func (w *warmLab) train(c string, nproc, deaths int, env ...string) (*training, error) {
	j, err := w.launch(c, nproc, deaths, env, "warm.py", fmt.Sprint(deaths))
	if err != nil {
		return nil, err
	}
	defer j.discard()
	if err := j.expect(0); err != nil {
		return nil, err
	}
	t := &training{begin: j.begin}
	if t.events, err = j.events(); err != nil {
		return nil, err
	}
	if c == muster && strings.Contains(j.console(), "started cold") {
		return nil, fmt.Errorf("a start was cold: %s", j.console())
	}
	for attempt := range deaths + 1 {
		if t.of("step", attempt).At == 0 || attempt < deaths && t.of("death", attempt).At == 0 {
			return nil, fmt.Errorf("attempt %d has not noted all: %s", attempt, j.console())
		}
	}
	return t, nil
}

// A training is what the workers of warm.py have noted.
type training struct {
	begin  int64
	events []event
}

// of returns what rank 0 noted, or the others what it does not; the last of several.
func (t *training) of(what string, attempt int) (found event) {
	for _, e := range t.events {
		if e.What == what && e.Restart == attempt && (e.Rank == 0 || what == "term") {
			found = e
		}
	}
	return found
}

func (w *warmLab) restarts(c string, deaths int, env ...string) (took []float64, err error) {
	t, err := w.train(c, 2, deaths, env...)
	if err != nil {
		return nil, err
	}
	for i := range deaths {
		took = append(took, float64(t.of("step", i+1).At-t.of("death", i).At)/1e9)
	}
	return took, nil
}

func (w *warmLab) start(c string) ([]float64, error) {
	t, err := w.train(c, 8, 0)
	if err != nil {
		return nil, err
	}
	return []float64{float64(t.of("step", 0).At-t.begin) / 1e9}, nil
}

func (w *warmLab) idle(c string) ([]float64, error) {
	j, err := w.launch(c, 8, 0, nil, "idle.py")
	if err != nil {
		return nil, err
	}
	defer j.discard()
	started, err := j.started(8, 0)
	if err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second)
	var sum float64
	for _, pid := range descendants(j.pid)[1:] {
		m, err := memoryOf(pid)
		if err != nil {
			return nil, err
		}
		sum += m.PSS
	}
	for _, e := range started {
		syscall.Kill(e.PID, syscall.SIGKILL)
	}
	return []float64{sum}, j.wait()
}

// slowLibrary builds workload/slow.c.
func (w *warmLab) slowLibrary() (string, error) {
	path := filepath.Join(w.dir, "slow.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", path, "bench/workload/slow.c", "-ldl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cc: %w: %s", err, out)
	}
	return path, nil
}

// installNVRx installs ft_launcher into a virtual environment of its own, with torch from beside.
func (l *lab) installNVRx(dir string) (string, error) {
	if out, err := exec.Command("internal/tools/beside.sh", l.python, dir, nvrxPackage).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return filepath.Join(dir, "bin", "ft_launcher"), nil
}
