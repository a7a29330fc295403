package devices

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// AllowedCPUs returns the CPUs that the calling thread may use, sorted. That
// respects taskset and cpusets, but not a cgroup's CPU quota.
func AllowedCPUs() ([]int, error) {
	// The kernel refuses a set smaller than its own, so grow until it fits.
	for size := 1024; ; size *= 2 {
		set := unix.NewCPUSet(size)
		if err := unix.SchedGetaffinityDynamic(0, set); err == unix.EINVAL && size < 1<<20 {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("sched_getaffinity: %w", err)
		}
		var cpus []int
		for cpu := range size {
			if set.IsSet(cpu) {
				cpus = append(cpus, cpu)
			}
		}
		return cpus, nil
	}
}
