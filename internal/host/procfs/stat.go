package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// A Stat is what /proc/<pid>/stat says about a process.
type Stat struct {
	PID, Parent, Group, Session int
	// State is a letter: R running, S sleeping, D uninterruptible sleep, Z zombie,
	// X dead, and others.
	State byte
	// Exiting says that its first thread ends, or has ended.
	Exiting bool
	// Start is when the process started, in clock ticks since boot. With PID it
	// names a process for good: a recycled number has another start.
	Start uint64
	// CPU is the time used in user and in kernel mode, by the process and by its
	// children that it has waited for; in steps of 10 ms.
	CPU     time.Duration
	Threads int
	// Resident is how much of its memory is in RAM, in bytes.
	Resident int64
}

// tick is the unit of CPU times in /proc: USER_HZ is 100 on every system that Go
// runs on.
const tick = 10 * time.Millisecond

// Alive reports whether the process can still do something. The state is that of its first thread,
// after whose end others may continue.
func (s Stat) Alive() bool { return s.State != 'Z' && s.State != 'X' || s.Threads > 1 }

var errStat = errors.New("malformed")

// ParseStat reads the text of /proc/<pid>/stat. The command name in it is in
// parentheses and may hold anything, parentheses and blanks too.
func ParseStat(text []byte) (Stat, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return Stat{}, errStat
	}
	var s Stat
	var err error
	if s.PID, err = strconv.Atoi(string(bytes.TrimSpace(text[:open]))); err != nil {
		return Stat{}, errStat
	}
	// Fields after the name, which is the second: state, ppid, pgrp, session, …
	const (
		flags     = 9 - 3
		firstTime = 14 - 3 // utime, stime, cutime, cstime
		lastTime  = 17 - 3
		threads   = 20 - 3
		start     = 22 - 3
		resident  = 24 - 3
	)
	n := 0
	for field := range bytes.FieldsSeq(text[end+1:]) {
		switch n {
		case 0:
			if len(field) != 1 {
				return Stat{}, errStat
			}
			s.State = field[0]
		case 1:
			s.Parent, err = strconv.Atoi(string(field))
		case 2:
			s.Group, err = strconv.Atoi(string(field))
		case 3:
			s.Session, err = strconv.Atoi(string(field))
		case flags:
			var set uint64
			set, err = strconv.ParseUint(string(field), 10, 64)
			s.Exiting = set&4 != 0 // PF_EXITING in include/linux/sched.h
		case firstTime, firstTime + 1, firstTime + 2, lastTime:
			var ticks int64
			ticks, err = strconv.ParseInt(string(field), 10, 64)
			s.CPU += time.Duration(ticks) * tick
		case threads:
			s.Threads, err = strconv.Atoi(string(field))
		case start:
			s.Start, err = strconv.ParseUint(string(field), 10, 64)
		case resident:
			var pages int64
			pages, err = strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return Stat{}, errStat
			}
			s.Resident = pages * int64(os.Getpagesize())
			return s, nil
		}
		if err != nil {
			return Stat{}, errStat
		}
		n++
	}
	if n > start {
		return s, nil
	}
	return Stat{}, fmt.Errorf("%w: %d fields", errStat, n)
}

// ParseChildren reads a list of pids, as the text of /proc/<pid>/task/<tid>/children is.
func ParseChildren(text []byte) []int {
	var pids []int
	for field := range bytes.FieldsSeq(text) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// HasEnv reports whether an environment, as /proc/<pid>/environ shows it, holds the
// entry NAME=value.
func HasEnv(environ []byte, entry string) bool {
	for e := range bytes.SplitSeq(environ, []byte{0}) {
		if entry != "" && string(e) == entry {
			return true
		}
	}
	return false
}
