package warm

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// From within, as setIdle is not exported: a template that was made at the lowest priority has the job's again.
func TestSetIdleKeepsNice(t *testing.T) {
	if !canBeIdle() {
		t.Skip("a thread at the lowest priority may not leave it here")
	}
	got := make(chan int)
	go func() {
		defer close(got)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
			t.Error(err)
			return
		}
		for _, idle := range []bool{true, false} {
			if err := setIdle(0, idle); err != nil {
				t.Error(err)
			}
		}
		prio, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
		got <- 20 - prio
	}()
	if nice, ok := <-got; ok && nice != 19 {
		t.Errorf("the nice value is %d afterwards, was 19", nice)
	}
}
