package failure_test

import (
	"fmt"
	"syscall"
	"time"

	"github.com/muster-run/muster/failure"
)

func Example() {
	now := time.Now()
	report := failure.NewReport(failure.ReportConfig{Title: "train.py", Host: "gpu7"}, []*failure.ProcessFailure{
		failure.New(failure.Observation{Rank: 0, PID: 4711, ExitCode: -15, StoppedBy: failure.Signal(syscall.SIGTERM), Ended: now.Add(time.Millisecond)}),
		failure.New(failure.Observation{Rank: 1, LocalRank: 1, PID: 4712, ExitCode: -9, Ended: now, OOM: "cgroup memory.events: oom_kill 0→1"}),
	})
	for _, f := range report.Failures {
		fmt.Println(f)
	}
	fmt.Println(report.Root().ExitStatus())
	// Output:
	// rank 1 (local_rank 1, pid 4712) on host gpu7: killed by SIGKILL: out of memory (cgroup memory.events: oom_kill 0→1)
	// rank 0 (local_rank 0, pid 4711) on host gpu7: stopped with SIGTERM
	// 137
}

// What the worker has written to stderr says why.
func ExampleNew() {
	stderr := `[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in <module>
[rank1]:     raise ValueError("boom")
[rank1]: ValueError: boom
`
	f := failure.New(failure.Observation{Rank: 1, PID: 4712, ExitCode: 1, Evidence: failure.Evidence{StderrTail: []byte(stderr)}})
	fmt.Println(f.Cause)
	// Output: ValueError: boom
}
