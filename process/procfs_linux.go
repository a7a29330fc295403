package process

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/procfs"
)

// A proc is what /proc/<pid>/stat says of a process.
type proc struct {
	pid, parent, group, session int
	state                       byte
	start                       uint64 // clock ticks since boot; with pid it names a process for good
}

var errStat = errors.New("malformed /proc/<pid>/stat")

func readStat(pid int) (proc, error) {
	text, err := procfs.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, err
	}
	return parseStat(pid, text)
}

// parseStat reads the fields after the command name, which may hold anything,
// parentheses and blanks too.
func parseStat(pid int, text []byte) (proc, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return proc{}, errStat
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return proc{}, errStat
	}
	p := proc{pid: pid, state: fields[0][0]}
	var errs [4]error
	p.parent, errs[0] = strconv.Atoi(fields[1])
	p.group, errs[1] = strconv.Atoi(fields[2])
	p.session, errs[2] = strconv.Atoi(fields[3])
	p.start, errs[3] = strconv.ParseUint(fields[19], 10, 64)
	return p, errors.Join(errs[:]...)
}

// children lists the children of a process, from the kernel's own lists where it
// keeps them, else from every process' parent.
func children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var pids []int
	for _, task := range tasks {
		text, err := procfs.ReadFile(dir + "/" + task.Name() + "/children")
		if err != nil {
			if errors.Is(err, os.ErrNotExist) && taskExists(dir+"/"+task.Name()) {
				return childrenByParent(pid)
			}
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(field); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

func taskExists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

func childrenByParent(parent int) []int {
	var pids []int
	for _, p := range allProcesses() {
		if p.parent == parent {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

func allProcesses() []proc {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []proc
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, err := readStat(pid); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// descendants lists the live processes below root, without those that skip names
// and what is below them.
func descendants(root int, skip func(pid int) bool) []proc {
	var list []proc
	todo := []int{root}
	for len(todo) > 0 {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, child := range children(pid) {
			if skip(child) {
				continue
			}
			p, err := readStat(child)
			if err != nil {
				continue
			}
			if p.state != 'Z' && p.state != 'X' {
				list = append(list, p)
			}
			todo = append(todo, child)
		}
	}
	return list
}

// waitChannel says where in the kernel a process waits.
func waitChannel(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	where := "unknown"
	if text, err := procfs.ReadFile(dir + "/wchan"); err == nil && len(text) > 0 && string(text) != "0" {
		where = string(text)
	}
	if p, err := readStat(pid); err == nil {
		where = "state " + string(p.state) + ", " + where
	}
	if stack, err := procfs.ReadFile(dir + "/stack"); err == nil {
		lines := strings.Split(strings.TrimSpace(string(stack)), "\n")
		where += ": " + strings.Join(lines[:min(len(lines), 8)], " ")
	}
	return where
}
