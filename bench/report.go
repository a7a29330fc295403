//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// page is what one run measured.
type page struct {
	Machine  []string
	Missing  []string
	Again    []string // measurements that failed once, and the error
	Begin    time.Time
	Took     time.Duration
	Sections []section
}

type section struct {
	Name string
	Rows []*row
}

// save writes what was measured until now into a file, and load takes it from there.
func (p *page) save(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func (p *page) load(path string) error {
	text, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := page{}
	if err == nil {
		err = json.Unmarshal(text, &old)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !slices.Equal(old.Machine, p.Machine) {
		return fmt.Errorf("%s was measured with %q, not %q; remove it", path, old.Machine, p.Machine)
	}
	*p = old
	return nil
}

// describe says what the figures were measured on and with.
func describe(l *lab) []string {
	var uts unix.Utsname
	unix.Uname(&uts)
	lines := []string{
		fmt.Sprintf("%d cores (%s), %s of memory, %s %s", runtime.NumCPU(), field("/proc/cpuinfo", "model name"),
			gib(field("/proc/meminfo", "MemTotal")), unix.ByteSliceToString(uts.Sysname[:]), unix.ByteSliceToString(uts.Release[:])),
		"bench and muster by " + runtime.Version(),
	}
	if l.musterBin != "" {
		lines = append(lines, "muster: "+output(l.musterBin, "version"))
	}
	if l.python != "" {
		lines = append(lines, "torchrun: PyTorch "+output(l.python, "-c", "import sys, torch; print(torch.__version__, 'on Python', sys.version.split()[0])"))
	}
	if l.quick {
		lines = append(lines, "with -quick: fewer rounds than by default")
	}
	if namesLoopback() {
		lines = append(lines, "/etc/hosts names ::ffff:127.0.0.1, so that PyTorch's server need not wait for a name server when a client connects")
	}
	return lines
}

func output(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// field reads "name : value" from a file of /proc.
func field(path, name string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func gib(kb string) string {
	var n float64
	if _, err := fmt.Sscan(kb, &n); err != nil {
		return kb
	}
	return fmt.Sprintf("%.0f GiB", n/(1<<20))
}

func (p *page) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, `# Benchmarks

Written by `+"`make bench`"+`; do not edit. muster beside the real torchrun and beside the floor, the bare system
calls, taking turns in one run on one machine. Figures are medians, unless the row says p99, with the 10th to the 90th percentile in
brackets; ratios say how many times better muster is. What is measured how: [bench/doc.go](../bench/doc.go).

![How many times better than torchrun muster and the floor are](benchmarks.svg)

`)
	fmt.Fprintf(&b, "* %s, %.0f s in all\n", p.Begin.Format("2006-01-02"), p.Took.Seconds())
	for _, a := range p.Again {
		fmt.Fprintf(&b, "* failed, and was measured again: %s\n", a)
	}
	for _, line := range append(p.Machine, p.Missing...) {
		fmt.Fprintf(&b, "* %s\n", line)
	}
	fmt.Fprint(&b, "\n| what | torchrun | muster | floor | muster to torchrun | goal | reached |\n|---|---|---|---|---|---|---|\n")
	var notes []string
	for _, s := range p.Sections {
		for _, r := range s.Rows {
			what := r.What
			if r.Note != "" {
				notes = append(notes, r.Note)
				what += fmt.Sprintf(" [%d]", len(notes))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", what, r.cell(torchrun), r.cell(muster), r.cell(floor),
				times(r.ratio(muster, torchrun)), r.goal(), r.reached())
		}
	}
	fmt.Fprintln(&b)
	for i, n := range notes {
		fmt.Fprintf(&b, "%d. %s.\n", i+1, n)
	}
	fmt.Fprint(&b, `
Start-up and reaction rows run `+"`torchrun --standalone …`"+` and `+"`muster run --standalone …`"+` with the same flags; both keep their
defaults (torchrun polls its workers ten times a second). Workers are a small static Go program, the same for all three. The floor of those rows
is a program that forks, waits and kills and does nothing else; the floor of the first two rows is fork and exec alone.
Rows of hosts run `+"`--nnodes … --rdzv-backend c10d`"+` with all agents on this machine, of which the first one holds the rendezvous.
`)
	return b.Bytes()
}
