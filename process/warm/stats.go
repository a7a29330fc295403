package warm

import "github.com/muster-run/muster/internal/host/procfs"

// Stats are what warm starts cost a host, and how many there were.
type Stats struct {
	// Ready reports whether there is a template. Without one the next four are zero.
	Ready        bool    `json:"ready"`
	PID          int     `json:"pid,omitempty"`
	Modules      int     `json:"modules,omitempty"`
	BuildSeconds float64 `json:"build_seconds,omitempty"` // it took to start it and to import them
	// PSSBytes is the template's memory. What it shares with workers counts in equal parts for
	// all of them.
	PSSBytes int64 `json:"pss_bytes,omitempty"`
	// WarmStarts and ColdStarts are workers that were started so, in all attempts.
	WarmStarts int64 `json:"warm_starts"`
	ColdStarts int64 `json:"cold_starts"`
}

// Stats reads them. Any goroutine may call it at any time.
func (h *Host) Stats() *Stats {
	s := &Stats{WarmStarts: h.forked.Load(), ColdStarts: h.execed.Load()}
	if t := h.now.Load(); t != nil && t.isAlive() {
		s.Ready, s.PID, s.Modules, s.BuildSeconds = true, t.cmd.Process.Pid, t.modules, t.took.Seconds()
		s.PSSBytes, _ = procfs.PSS(s.PID)
	}
	return s
}
