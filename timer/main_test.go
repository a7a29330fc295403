package timer_test

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/test/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	os.Exit(m.Run())
}

// worker starts a process that does nothing until it is killed.
func worker(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testproc.Program(), testproc.Args("hang")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// endedBy waits for a process and returns the signal that ended it.
func endedBy(t testing.TB, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	late := time.AfterFunc(testproc.Patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

// line is a request as a client writes it.
func line(pid int, scope string, at float64, sig syscall.Signal) string {
	return req(pid, scope, at, sig).String() + "\n"
}

// A journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex // guards text
	text strings.Builder
	more chan struct{} // has something after each write
}

func newJournal() *journal { return &journal{more: make(chan struct{}, 1)} }

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case j.more <- struct{}{}:
	default:
	}
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// await waits until something was logged.
func (j *journal) await(t testing.TB, text string) {
	t.Helper()
	late := time.After(testproc.Patience)
	for !strings.Contains(j.String(), text) {
		select {
		case <-j.more:
		case <-late:
			t.Fatalf("the log never says %q:\n%s", text, j)
		}
	}
}
