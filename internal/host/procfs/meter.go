package procfs

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// meterInterval is how far readings are apart at least: one looks at every process
// of the machine.
const meterInterval = time.Second

// A Meter reads what processes use, again and again. Its zero value is ready. It may be
// used by several goroutines at once; it starts none, and reads only when it is asked.
type Meter struct {
	mu       sync.Mutex // guards the rest
	at       time.Time
	pids     []int
	readings map[int]Reading
}

// A Reading is what a process uses, with what belongs to it. Its CPU time does not go
// back where a descendant was killed and nobody counted it.
type Reading struct {
	Use
	// Percent of one CPU since the reading before; 800 is eight CPUs. It is 0 in the
	// first reading.
	Percent float64
}

// Read returns what processes use, by pid; one that has ended is not in it. Readings
// are at least a second apart: asked again sooner for the same pids, Read returns the
// one before. Where there is no /proc it returns nothing.
func (m *Meter) Read(now time.Time, pids []int) map[int]Reading {
	pids = slices.Sorted(slices.Values(pids))
	m.mu.Lock()
	defer m.mu.Unlock()
	elapsed := now.Sub(m.at)
	if m.readings != nil && elapsed < meterInterval && slices.Equal(pids, m.pids) {
		return maps.Clone(m.readings)
	}
	uses, err := Uses(pids)
	if err != nil || len(pids) == 0 {
		return nil
	}
	readings := make(map[int]Reading, len(uses))
	for pid, use := range uses {
		if use.Processes == 0 {
			continue
		}
		r := Reading{Use: use}
		if before, ok := m.readings[pid]; ok && before.Start == use.Start { // else the pid is another process's
			r.CPU = max(r.CPU, before.CPU)
			if elapsed > 0 {
				r.Percent = (r.CPU - before.CPU).Seconds() / elapsed.Seconds() * 100
			}
		}
		readings[pid] = r
	}
	m.at, m.pids, m.readings = now, pids, readings
	return maps.Clone(readings)
}
