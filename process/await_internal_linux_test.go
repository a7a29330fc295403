package process

import (
	"os/exec"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/host/procfs"
)

// What a worker has started is an orphan, which can be found, once the worker has ended, and not
// when it was killed.
func TestAwaitEnd(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if awaitEnd(cmd.Process.Pid, 20*time.Millisecond); time.Since(began) < 20*time.Millisecond {
		t.Error("a process that runs was not waited for")
	}
	_ = cmd.Process.Kill()
	awaitEnd(cmd.Process.Pid, time.Hour)
	if p, err := procfs.Read(cmd.Process.Pid); err != nil || p.Alive() {
		t.Errorf("%+v, %v", p, err)
	}
	_ = cmd.Wait()
}
