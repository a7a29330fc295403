package numa

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Bind limits a thread to CPUs; 0 is the calling one, and a process of one thread has its number.
// What it starts has the same limit. No CPUs: no limit.
func Bind(tid int, cpus []int) error {
	var wanted unix.CPUSet
	for _, cpu := range cpus {
		wanted.Set(cpu)
	}
	switch {
	case len(cpus) == 0:
		return nil
	case wanted.Count() == 0:
		return fmt.Errorf("bind to CPUs %v: no such CPU", cpus)
	}
	if err := unix.SchedSetaffinity(tid, &wanted); err != nil {
		return fmt.Errorf("bind to CPUs %v: %w", cpus, err)
	}
	return nil
}
