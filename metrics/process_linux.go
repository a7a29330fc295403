package metrics

import (
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/host/procfs"
)

// writeProc adds what /proc says of the agent.
func writeProc(s scrape) {
	if own, err := procfs.Read(os.Getpid()); err == nil {
		s.gauge("process_resident_memory_bytes", "Memory that the agent has resident.", float64(own.Resident))
		var up unix.Timespec // since boot, as Start is
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
			start := float64(time.Now().UnixNano()-up.Nano())/1e9 + float64(own.Start)/100
			// Rounded to what Start resolves, so that it is the same each time.
			s.gauge("process_start_time_seconds", "When the agent started, in seconds since 1970.", math.Round(start*10)/10)
		}
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, err := dir.Readdirnames(-1)
		dir.Close()
		if err == nil {
			s.gauge("process_open_fds", "File descriptors that the agent has open.", float64(len(names)-1)) // without dir
		}
	}
}
