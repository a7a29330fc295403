package health

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/procfs"
)

// Usage is what a worker and its descendants use of the machine.
type Usage struct {
	// CPUSeconds since the worker's start, of user and system. Descendants that
	// have ended count once their parents know.
	CPUSeconds float64 `json:"cpu_seconds"`
	// CPUPercent of one CPU since the reading before; 800 is eight CPUs. It is 0 in
	// the first reading.
	CPUPercent float64 `json:"cpu_percent"`
	// RSSBytes of memory. What processes share counts for each of them, so that it
	// is too much where data loaders are forked.
	RSSBytes  int64 `json:"rss_bytes"`
	Processes int   `json:"processes,omitempty"`
	Threads   int   `json:"threads,omitempty"`
}

// meterInterval is how far readings are apart at least: one looks at every process
// of the machine.
const meterInterval = time.Second

// A Meter reads what workers use. Its zero value is ready. It may be used by
// several goroutines at once; it starts none, and reads only when it is asked.
type Meter struct {
	mu      sync.Mutex // guards the rest
	at      time.Time
	pids    []int
	last    map[int]reading
	current map[int]Usage
}

// A reading is what a worker had used at the last look.
type reading struct {
	start uint64 // of the worker, in ticks: with the pid it names the process for good
	cpu   float64
}

// Read returns what the workers use, by pid; a worker that has ended is not in it.
// Readings are at least a second apart: asked again sooner for the same pids, Read
// returns the one before. Where there is no /proc it returns nothing.
func (m *Meter) Read(now time.Time, pids []int) map[int]Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	elapsed := now.Sub(m.at)
	if m.current != nil && elapsed < meterInterval && slices.Equal(pids, m.pids) {
		return maps.Clone(m.current)
	}
	uses, err := procfs.Uses(pids)
	if err != nil || len(pids) == 0 {
		return nil
	}
	last := make(map[int]reading, len(uses))
	m.current = make(map[int]Usage, len(uses))
	for pid, use := range uses {
		if use.Processes == 0 {
			continue
		}
		u := Usage{CPUSeconds: use.CPU.Seconds(), RSSBytes: use.Resident, Processes: use.Processes, Threads: use.Threads}
		if before, ok := m.last[pid]; ok && before.start == use.Start {
			u.CPUSeconds = max(u.CPUSeconds, before.cpu) // a descendant was killed and nobody counted it
			if elapsed > 0 {
				u.CPUPercent = (u.CPUSeconds - before.cpu) / elapsed.Seconds() * 100
			}
		}
		last[pid] = reading{use.Start, u.CPUSeconds}
		m.current[pid] = u
	}
	m.at, m.pids, m.last = now, slices.Clone(pids), last
	return maps.Clone(m.current)
}
