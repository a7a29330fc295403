//go:build !linux

package devices

import "runtime"

// AllowedCPUs returns every CPU: this system has no affinity to ask for.
func AllowedCPUs() ([]int, error) {
	cpus := make([]int, runtime.NumCPU())
	for i := range cpus {
		cpus[i] = i
	}
	return cpus, nil
}
