//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory of a process in bytes.
type memory struct{ RSS, PSS float64 }

func memoryOf(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	return memory{RSS: kilobytes(text, "Rss:"), PSS: kilobytes(text, "Pss:")}, nil
}

// kilobytes reads a "Name:  12 kB" line.
func kilobytes(text []byte, name string) float64 {
	return float64(number(text, name)) * 1024
}

func number(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// activity is what a process has done so far.
type activity struct {
	CPU      float64 // seconds on a CPU of its living threads
	Switches int64   // times that one of them was put to sleep and woken, or preempted
}

func (a activity) minus(b activity) activity {
	return activity{a.CPU - b.CPU, a.Switches - b.Switches}
}

func (a activity) plus(b activity) activity {
	return activity{a.CPU + b.CPU, a.Switches + b.Switches}
}

func activityOf(pid int) (activity, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return activity{}, fmt.Errorf("process %d has ended", pid)
	}
	var a activity
	for _, dir := range tasks {
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue // the thread has ended
		}
		a.Switches += number(status, "voluntary_ctxt_switches:") + number(status, "nonvoluntary_ctxt_switches:")
		if text, err := os.ReadFile(dir + "/schedstat"); err == nil {
			if f := strings.Fields(string(text)); len(f) > 0 {
				ns, _ := strconv.ParseInt(f[0], 10, 64)
				a.CPU += float64(ns) / 1e9
			}
		}
	}
	return a, nil
}

// cpuTicks is the processor time in seconds of a process, ended threads
// included, and of the children it has waited for, to the kernel's tick of
// 10 ms.
func cpuTicks(pid int) (own, children float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 15 {
		return 0, 0
	}
	var v [4]float64
	for i := range v {
		v[i], _ = strconv.ParseFloat(f[11+i], 64)
	}
	return (v[0] + v[1]) / 100, (v[2] + v[3]) / 100
}

// marked lists the processes whose environment holds the entry.
func marked(entry string) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+entry+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descendants lists the processes below pid, and pid itself.
func descendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for f := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(f); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}
