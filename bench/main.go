//go:build linux

package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// measurements in the order of the page.
var measurements = []struct {
	name string
	run  func(*lab) ([]*row, error)
}{
	{"start", measureStart},
	{"idle", measureIdle},
	{"react", measureReact},
	{"tee", measureTee},
	{"latency", measureLatency},
	{"store", measureStore},
	{"hosts", measureHosts},
	{"view", measureView},
	{"warm", measureWarm},
	{"live", measureLive},
	{"livecost", measureLiveCost},
	{"wheel", measureWheel},
	{"timer", measureTimer},
}

func main() {
	out := flag.String("out", "", "write benchmarks.md and benchmarks.svg into this `directory`; default docs for a full run, else nowhere")
	only := flag.String("run", "", "measurements whose name matches this `regexp`: start idle react tee latency store hosts view warm live livecost wheel timer")
	quick := flag.Bool("quick", false, "fewer rounds")
	rounds := flag.Int("count", 0, "`rounds` of every measurement, 0 for its own")
	restart := flag.String("restart", "", "draw where a restart's time goes, cold and warm, into this `file`, and measure nothing else")
	change := flag.String("change", "", "draw a live change into this `file`, and measure nothing else")
	resume := flag.String("resume", "", "keep what is measured in this `file`, and take what is in it as measured")
	bin := flag.String("muster", "bin/muster", "the muster `binary`")
	flag.Parse()
	if *out == "" && *only == "" && !*quick && *rounds == 0 {
		*out = "docs"
	}
	if status, ran, err := withNames(); err != nil || ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			status = 1
		}
		os.Exit(status)
	}
	if err := run(*out, *only, *bin, *restart, *change, *resume, *quick, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out, only, bin, restart, change, resume string, quick bool, rounds int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "muster-bench-")
	if err != nil {
		return err
	}
	l := &lab{quick: quick, rounds: rounds, dir: dir, alive: map[int]bool{},
		mark: "MUSTER_BENCH=" + strconv.Itoa(os.Getpid())}
	defer os.RemoveAll(dir)
	defer l.stop()
	if err := nameLoopback(dir); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-interrupted
		l.stop()
		os.RemoveAll(dir)
		os.Exit(130)
	}()

	missing := l.find(bin)
	for _, m := range missing {
		fmt.Fprintln(os.Stderr, "without", m)
	}
	// A thousand clients need as many descriptors, here and in the servers.
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < files.Max {
		files.Cur = files.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
	}
	if err := l.build(); err != nil {
		return err
	}
	switch {
	case restart != "":
		return drawRestart(l, restart)
	case change != "":
		return drawChange(l, change)
	}
	p := &page{Machine: describe(l), Missing: missing, Begin: time.Now()}
	if err := p.load(resume); err != nil {
		return err
	}
	for _, m := range measurements {
		if !match.MatchString(m.name) || slices.ContainsFunc(p.Sections, func(s section) bool { return s.Name == m.name }) {
			continue
		}
		begin := time.Now()
		rows, err := m.run(l)
		if err != nil { // of forty minutes of starting torchrun, one start may fail; the page says so
			line, _, _ := strings.Cut(err.Error(), "\n")
			p.Again = append(p.Again, m.name+": "+line)
			fmt.Fprintf(os.Stderr, "bench: %s, once more after: %v\n", m.name, err)
			rows, err = m.run(l)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%s, %.0f s\n", m.name, time.Since(begin).Seconds())
		for _, r := range rows {
			fmt.Printf("  %-58s %s %-30s %s %-30s %s %-30s goal %s\n", r.What, muster, r.cell(muster), torchrun, r.cell(torchrun), floor, r.cell(floor), r.goal())
			if r.Note != "" {
				fmt.Printf("    (%s)\n", r.Note)
			}
		}
		p.Sections = append(p.Sections, section{m.name, rows})
		p.Took += time.Since(begin)
		if err := p.save(resume); err != nil {
			return err
		}
	}
	if out == "" {
		return nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"benchmarks.svg": p.chart(), "bars.svg": p.bars(), "benchmarks.md": p.markdown()} {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
