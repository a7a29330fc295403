//go:build linux

package timer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/timer"
)

// TestSocketPython runs python/tests/test_timer.py against a server, with PyTorch
// and with an interpreter that has none.
func TestSocketPython(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		const python = "/usr/bin/python3"
		if _, err := os.Stat(python); err != nil {
			t.Skipf("needs %s: %v", python, err)
		}
		runPython(t, python)
	})
	t.Run("torch", func(t *testing.T) { runPython(t, pypeer.Python(t, "../python/muster", "../python/tests")) })
}

func runPython(t *testing.T, python string) {
	source, err := filepath.Abs("../python")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "socket")
	theirs, ours, done := controlPipes(t)
	cmd := exec.Command(python, "-W", "ignore::DeprecationWarning", "-m", "unittest", "-v", "test_timer")
	cmd.Dir = filepath.Join(source, "tests")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+source, "PYTHONDONTWRITEBYTECODE=1",
		timer.EnvSocket+"="+path, "TIMER_TEST_CONTROL=3,4",
		testproc.Unpaused) // each pause would begin the kernel's time limit of a recv anew
	cmd.ExtraFiles = theirs
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		control(t, path, ours)
	}()
	out, err := cmd.CombinedOutput()
	done()
	<-finished
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if n := strings.Count(string(out), "... ok\n"); n < 20 {
		t.Errorf("%d tests passed, want all:\n%s", n, out)
	}
}

// controlPipes returns the child's ends and ours, each to read and to write, and
// what closes the child's.
func controlPipes(t *testing.T) (theirs, ours []*os.File, done func()) {
	t.Helper()
	r1, w1, err1 := os.Pipe()
	r2, w2, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return []*os.File{r1, w2}, []*os.File{r2, w1}, func() { r1.Close(); w2.Close() }
}

// control serves, and says what the server knows, until the pipe is closed.
func control(t *testing.T, path string, pipes []*os.File) {
	defer pipes[0].Close()
	defer pipes[1].Close()
	core, s, stop := startBoth(t, path)
	for lines := bufio.NewScanner(pipes[0]); lines.Scan(); {
		var answer any
		switch command := strings.Fields(lines.Text()); command[0] {
		case "live":
			all := [][]any{}
			for _, r := range core.Live(0) {
				at := any(r.Seconds())
				if r.ExpirationTime.Year() > 9999 {
					at = "never"
				}
				all = append(all, []any{r.PID, r.ScopeID, at, r.Signal})
			}
			answer = all
		case "beat":
			h, ok := s.Heartbeat(number(command, 1))
			if answer = h.Step; !ok {
				answer = nil
			}
		case "restart":
			stop()
			core, s, stop = startBoth(t, path)
			answer = true
		}
		text, err := json.Marshal(answer)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(pipes[1], "%s\n", text)
	}
	stop()
}

func startBoth(t *testing.T, path string) (*timer.Server, *timer.SocketServer, func()) {
	core, err := timer.NewServer(timer.Config{})
	if err != nil {
		t.Error(err)
	}
	s, err := timer.ListenSocket(core, path)
	if err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error, 2)
	go func() { errs <- core.Run(ctx) }()
	go func() { errs <- s.Serve(ctx) }()
	return core, s, func() {
		cancel()
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	}
}
