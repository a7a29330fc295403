package metrics

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// writeProcess adds what the agent's own process uses, under the names that
// all programs have for it. What a system does not tell is left out.
func writeProcess(s scrape) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		s.counter("process_cpu_seconds_total", "CPU time of the agent, user and system.", seconds(u.Utime)+seconds(u.Stime))
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		s.gauge("process_max_fds", "File descriptors that the agent may have open.", float64(limit.Cur))
	}
	s.gauge("go_goroutines", "Goroutines of the agent.", float64(runtime.NumGoroutine()))
	writeProc(s)
}

func seconds(t unix.Timeval) float64 { return float64(t.Nano()) / 1e9 }
