package health

import (
	"bytes"
	"os"
	"strconv"

	"github.com/muster-run/muster/internal/procfs"
)

// ticks is how many clock ticks a second has in /proc: USER_HZ, which is 100 on
// every architecture that Go runs on.
const ticks = 100

// usage looks at every process of the machine once, and adds up those that descend
// from a worker or are in its process group.
func usage(pids []int) (map[int]used, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make(map[int]process, len(names)/2)
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if text, err := procfs.ReadFile("/proc/" + name + "/stat"); err == nil {
			if p, ok := parseProcess(text); ok {
				all[p.PID] = p
			}
		}
	}
	found := make(map[int]used, len(pids))
	for _, pid := range pids {
		if p, ok := all[pid]; ok {
			found[pid] = used{start: p.Start}
		}
	}
	for _, p := range all {
		if pid, ok := workerOf(p, all, found); ok {
			u := found[pid]
			u.CPUSeconds += p.cpu
			u.RSSBytes += p.rss
			u.Processes++
			u.Threads += p.threads
			found[pid] = u
		}
	}
	return found, nil
}

// workerOf returns the worker that a process belongs to.
func workerOf(p process, all map[int]process, workers map[int]used) (int, bool) {
	group := p.Group
	for range 64 { // /proc was not read at one instant: there might be a cycle
		if _, ok := workers[p.PID]; ok {
			return p.PID, true
		}
		parent, ok := all[p.Parent]
		if !ok {
			break
		}
		p = parent
	}
	_, ok := workers[group]
	return group, ok
}

// A process is one of the machine's.
type process struct {
	procfs.Stat
	cpu     float64
	rss     int64
	threads int
}

// parseProcess reads the text of /proc/<pid>/stat.
// Source: proc_pid_stat(5); fields count from 3 after the name.
func parseProcess(text []byte) (process, bool) {
	stat, err := procfs.ParseStat(text)
	if err != nil {
		return process{}, false
	}
	p := process{Stat: stat}
	n := 3
	for field := range bytes.FieldsSeq(text[bytes.LastIndexByte(text, ')')+1:]) {
		switch n {
		case 14, 15, 16, 17: // utime stime cutime cstime
			p.cpu += float64(number(field)) / ticks
		case 20:
			p.threads = int(number(field))
		case 24:
			p.rss = number(field) * int64(os.Getpagesize())
			return p, true
		}
		n++
	}
	return process{}, false
}

func number(field []byte) int64 {
	n, err := strconv.ParseInt(string(field), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
