//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const lineSize = 128 // bytes of a flood's line, newline included

// measureTee lets four workers write lines as fast as they can under --tee 3
// with one file as the console of both streams, and then reads every line of
// it. Time runs from the workers' go to the last write to the console.
func measureTee(l *lab) ([]*row, error) {
	one, err := measureTeeOf(l, 1)
	if err != nil {
		return nil, err
	}
	two, err := measureTeeOf(l, 2)
	if err != nil {
		return nil, err
	}
	collapse, err := measureCollapse(l)
	return slices.Concat(one, two, collapse), err
}

// measureCollapse lets the workers write to stdout as before, with --collapse. No
// two lines are equal, so that all the searching is for nothing.
func measureCollapse(l *lab) ([]*row, error) {
	const workers = 4
	if l.musterBin == "" {
		return nil, nil
	}
	lines := teeLines(l)
	rate := &row{What: "the same to stdout with `--collapse`, all lines different", Unit: bytesPerSecond, Goal: 250e6}
	cpu := &row{What: "the agent's CPU for it", Unit: secondsPerGB, Goal: 3}
	lost := &row{What: fmt.Sprintf("lines lost, torn, glued or unprefixed of %d", workers*lines), Unit: count, GoalText: "0"}
	for range l.n(4, 2) {
		got, err := l.teeOnce(muster, workers, lines, 1, "--collapse")
		if err != nil {
			return nil, fmt.Errorf("--collapse: %w", err)
		}
		rate.add(muster, float64(workers*lines*lineSize)/got.seconds)
		cpu.add(muster, got.cpu/(float64(workers*lines*lineSize)/1e9))
		lost.add(muster, float64(got.lost+got.torn))
	}
	return []*row{rate, cpu, lost}, nil
}

// teeLines is how many lines a worker writes.
func teeLines(l *lab) int {
	if l.quick {
		return 50_000
	}
	return 200_000
}

// measureTeeOf lets the workers write to stdout, or to stdout and stderr.
func measureTeeOf(l *lab, streams int) ([]*row, error) {
	const workers = 4
	lines := teeLines(l)
	where := map[int]string{1: "writing to stdout", 2: "writing to stdout and stderr"}[streams]
	rate := &row{What: "`--tee 3` of 4 busy workers " + where + ", console to a file", Chart: "tee, " + where, Unit: bytesPerSecond, Goal: 500e6}
	cpu := &row{What: "the agent's CPU for it", Chart: "its CPU per GB", Unit: secondsPerGB, Goal: 1.5}
	lost := &row{What: fmt.Sprintf("lines lost of %d", workers*lines), Unit: count, GoalText: "0"}
	torn := &row{What: "lines torn, glued or unprefixed", Unit: count, GoalText: "0"}
	for range l.n(4, 2) {
		for _, c := range l.contenders() {
			got, err := l.teeOnce(c, workers, lines, streams)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			rate.add(c, float64(workers*lines*lineSize)/got.seconds)
			lost.add(c, float64(got.lost))
			if c != floor {
				cpu.add(c, got.cpu/(float64(workers*lines*lineSize)/1e9))
				torn.add(c, float64(got.torn))
			}
		}
	}
	if streams == 1 {
		rate.Note = fmt.Sprintf("%d lines of %d bytes, written in blocks of 8 KiB; the floor is the workers writing to files of their own", workers*lines, lineSize)
	}
	return []*row{rate, cpu, lost, torn}, nil
}

type teeResult struct {
	seconds, cpu float64
	lost, torn   int
}

func (l *lab) teeOnce(c string, workers, lines, streams int, flags ...string) (teeResult, error) {
	var got teeResult
	dir, err := os.MkdirTemp(l.dir, "tee")
	if err != nil {
		return got, err
	}
	defer os.RemoveAll(dir)
	path, goFile := filepath.Join(dir, "console"), filepath.Join(dir, "go")
	out, err := os.Create(path)
	if err != nil {
		return got, err
	}
	defer out.Close()
	// Where the log directory is told, the floor's workers write there.
	logs := filepath.Join(dir, "logs")
	if err := os.Mkdir(logs, 0o755); err != nil {
		return got, err
	}
	j, err := l.start(l.argv(c, workers, append([]string{"--log-dir", logs, "--tee=3"}, flags...),
		l.worker, "flood", strconv.Itoa(lines), strconv.Itoa(lineSize), strconv.Itoa(streams), goFile),
		console{stdout: out, stderr: out})
	if err != nil {
		return got, err
	}
	defer j.discard()
	if _, err := j.started(workers, 0); err != nil {
		return got, err
	}
	time.Sleep(50 * time.Millisecond)
	// What start-up cost is not counted. Living threads are known to the
	// nanosecond, ended ones to the tick.
	threads, err := activityOf(j.pid)
	if err != nil {
		return got, err
	}
	own, children := cpuTicks(j.pid)
	before := max(threads.CPU, own) + children
	begin := time.Now()
	if err := os.WriteFile(goFile, nil, 0o644); err != nil {
		return got, err
	}
	if err := j.expect(0); err != nil {
		return got, err
	}
	events, err := j.events()
	if err != nil {
		return got, err
	}
	got.cpu = j.cpu() - before
	end := begin
	for _, e := range events {
		if e.What == "cpu" {
			got.cpu -= float64(e.Additional) / 1e9
		}
	}
	if c == floor {
		files, _ := filepath.Glob(filepath.Join(logs, "*.*"))
		v := newVerifier(workers, lines)
		for _, f := range files {
			if err := v.read(f, false); err != nil {
				return got, err
			}
			end = later(end, f)
		}
		got.lost, got.torn = v.lost(), v.torn
	} else {
		v := newVerifier(workers, lines)
		if err := v.read(path, true); err != nil {
			return got, err
		}
		got.lost, got.torn = v.lost(), v.torn
		end = later(end, path)
	}
	got.seconds = end.Sub(begin).Seconds()
	return got, nil
}

// later returns the later of t and the last write to a file.
func later(t time.Time, path string) time.Time {
	if info, err := os.Stat(path); err == nil && info.ModTime().After(t) {
		return info.ModTime()
	}
	return t
}

// verifier knows which lines there must be.
type verifier struct {
	seen  [][]bool // by rank and number
	torn  int
	fresh []byte
}

func newVerifier(workers, lines int) *verifier {
	v := &verifier{}
	for range workers {
		v.seen = append(v.seen, make([]bool, lines))
	}
	return v
}

func (v *verifier) read(path string, prefixed bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		said := prefixed && bytes.HasPrefix(line, []byte("muster: log files in ")) // by the launcher
		if len(line) > 0 && !said && !v.line(string(line), prefixed) {
			v.torn++
		}
		if err == io.EOF {
			return nil
		}
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
	}
}

// line notes one line of the console, if it is whole and new.
func (v *verifier) line(line string, prefixed bool) bool {
	rank := ""
	if prefixed {
		var ok bool
		if line, ok = strings.CutPrefix(line, "[default"); !ok {
			return false
		}
		if rank, line, ok = strings.Cut(line, "]:"); !ok {
			return false
		}
	}
	f := strings.SplitN(line, " ", 3)
	if len(f) < 3 || prefixed && f[0] != rank {
		return false
	}
	r, err1 := strconv.Atoi(f[0])
	seq, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil || r < 0 || r >= len(v.seen) || seq < 0 || seq >= len(v.seen[r]) || v.seen[r][seq] {
		return false
	}
	// As appendLine of workload/worker makes it.
	fresh := append(v.fresh[:0], f[0]+" "+f[1]+" "...)
	c := byte('a' + (seq+len(fresh))%26)
	fresh = append(fresh, strings.Repeat(string(c), lineSize-1-len(fresh))...)
	v.fresh = append(fresh, '\n')
	v.seen[r][seq] = string(v.fresh) == line
	return v.seen[r][seq]
}

func (v *verifier) lost() int {
	n := 0
	for _, lines := range v.seen {
		n += len(lines) - len(slices.DeleteFunc(slices.Clone(lines), func(ok bool) bool { return !ok }))
	}
	return n
}
