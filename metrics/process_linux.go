package metrics

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/procfs"
)

// collectProc adds what /proc says of the agent.
func collectProc(c *Collect) {
	if text, err := procfs.ReadFile("/proc/self/statm"); err == nil {
		if virtual, _, ok := bytes.Cut(text, []byte(" ")); ok {
			if pages, err := strconv.ParseInt(string(virtual), 10, 64); err == nil {
				c.Gauge("process_virtual_memory_bytes", "Address space of the agent.", float64(pages)*float64(os.Getpagesize()))
			}
		}
	}
	if s, err := procfs.Read(os.Getpid()); err == nil {
		c.Gauge("process_resident_memory_bytes", "Memory that the agent has resident.", float64(s.Resident))
		var up unix.Timespec // since boot, as Start is
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
			start := float64(time.Now().UnixNano()-up.Nano())/1e9 + float64(s.Start)/100
			// Rounded to what Start resolves, so that it is the same each time.
			c.Gauge("process_start_time_seconds", "When the agent started, in seconds since 1970.", math.Round(start*10)/10)
		}
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, err := dir.Readdirnames(-1)
		dir.Close()
		if err == nil {
			c.Gauge("process_open_fds", "File descriptors that the agent has open.", float64(len(names)-1)) // without dir
		}
	}
}
