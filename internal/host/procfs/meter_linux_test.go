package procfs_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/host/procfs"
	"github.com/muster-run/muster/internal/test/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	os.Exit(m.Run())
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestMeterSelf(t *testing.T) {
	var m procfs.Meter
	pid, now := os.Getpid(), time.Now()
	first := m.Read(now, []int{pid})[pid]
	if first.Percent != 0 || first.Resident < 1<<20 || first.Threads < 2 || first.Processes < 1 {
		t.Errorf("first reading: %+v", first)
	}
	for end := cpuTime(t) + 100*time.Millisecond; cpuTime(t) < end; {
	}
	if again := m.Read(now.Add(time.Second/2), []int{pid})[pid]; again != first {
		t.Errorf("half a second later: %+v, want %+v", again, first)
	}
	second := m.Read(now.Add(2*time.Second), []int{pid})[pid]
	used := (second.CPU - first.CPU).Seconds()
	if used < 0.08 || used > 60 {
		t.Errorf("%v s of CPU time, want 0.1 s or a little more", used)
	}
	if want := used / 2 * 100; second.Percent < want-0.01 || second.Percent > want+0.01 {
		t.Errorf("Percent %v, want %v", second.Percent, want)
	}
	if got := m.Read(now.Add(4*time.Second), nil); got != nil {
		t.Errorf("of no pids: %v", got)
	}
}

// TestMeterDescendants: what a worker has started counts with it, also what has
// lost its parent, and what is not the worker's does not.
func TestMeterDescendants(t *testing.T) {
	lab := testproc.New(t)
	start := func(script ...string) int {
		cmd := exec.Command(testproc.Program(), testproc.Args(script...)...)
		cmd.Env = lab.Env()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			lab.OpenGate()
			_ = cmd.Wait()
			for _, pid := range lab.Left() { // the one that has lost its parent
				testproc.AwaitEnd(pid, time.Minute)
			}
		})
		return cmd.Process.Pid
	}
	const child = "alloc:64|say:child|gate"
	family := start("spawn::"+child, "spawn:double:"+child, "say:parent", "gate")
	lab.Lines(3)
	single := start("say:parent", "gate")
	lab.Lines(1)

	var m procfs.Meter
	got := m.Read(time.Now(), []int{family, single, 1 << 30})
	if len(got) != 2 {
		t.Errorf("readings of %d workers, want 2: a pid that is nobody's has none", len(got))
	}
	if u := got[family]; u.Processes != 3 || u.Resident < 128<<20 {
		t.Errorf("the family: %+v, want 3 processes and 128 MiB or more", u)
	}
	if u := got[single]; u.Processes != 1 || u.Resident > 64<<20 {
		t.Errorf("the single one: %+v, want 1 process and less than 64 MiB", u)
	}
}
