package procfs

import "time"

// A Use is what a process and its descendants use.
type Use struct {
	CPU       time.Duration // see Stat.CPU
	Resident  int64         // bytes; memory that several of them share counts several times
	Processes int           // that are alive; 0 if the process is gone
}

func uses(all []Stat, pids []int) map[int]Use {
	byPID := make(map[int]*Stat, len(all))
	for i := range all {
		byPID[all[i].PID] = &all[i]
	}
	found := make(map[int]Use, len(pids))
	for _, pid := range pids {
		found[pid] = Use{}
	}
	for i := range all {
		s := &all[i]
		// Its line of ancestors cannot be longer than the list, also where processes
		// ended and numbers were recycled while it was read.
		for at, left := s, len(all); at != nil && left > 0; at, left = byPID[at.Parent], left-1 {
			u, ok := found[at.PID]
			if !ok {
				continue
			}
			u.CPU += s.CPU
			if s.Alive() {
				u.Resident += s.Resident
				u.Processes++
			}
			found[at.PID] = u
			break
		}
	}
	return found
}
