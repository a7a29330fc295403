package procfs

import "time"

// A Use is what a process uses along with its descendants and the other processes
// of its process group.
type Use struct {
	Start     uint64        // of the process itself; see Stat.Start
	CPU       time.Duration // see Stat.CPU
	Resident  int64         // bytes; memory that several of them share counts several times
	Processes int           // that are alive
	Threads   int           // of those
	Ended     bool          // the process itself has, and nobody has waited for it yet
}

// Uses returns what each of some processes uses, with what belongs to it, by pid. It
// reads the state of every process of the machine.
func Uses(pids []int) (map[int]Use, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	return uses(all, pids), nil
}

// uses adds up what belongs to each of some processes. One that is gone is not in
// the result.
func uses(all []Stat, pids []int) map[int]Use {
	byPID := make(map[int]*Stat, len(all))
	for i := range all {
		byPID[all[i].PID] = &all[i]
	}
	found := make(map[int]Use, len(pids))
	for _, pid := range pids {
		if s := byPID[pid]; s != nil {
			found[pid] = Use{Start: s.Start, Ended: !s.Alive()}
		}
	}
	for i := range all {
		s := &all[i]
		pid, ok := ownerOf(s, byPID, found)
		if !ok {
			continue
		}
		u := found[pid]
		u.CPU += s.CPU
		if s.Alive() {
			u.Resident += s.Resident
			u.Processes++
			u.Threads += s.Threads
		}
		found[pid] = u
	}
	return found
}

// ownerOf returns the process that s belongs to: itself or the next ancestor, else
// the leader of its group.
func ownerOf(s *Stat, byPID map[int]*Stat, owners map[int]Use) (int, bool) {
	// Where processes ended and numbers were recycled while the list was read, a line
	// of ancestors may have no end.
	for at, left := s, 64; at != nil && left > 0; at, left = byPID[at.Parent], left-1 {
		if _, ok := owners[at.PID]; ok {
			return at.PID, true
		}
	}
	_, ok := owners[s.Group]
	return s.Group, ok
}
