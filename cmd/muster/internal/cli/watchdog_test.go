package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/timer"
)

// startWatchdog starts `muster watchdog` and returns it once clients can write.
func startWatchdog(t *testing.T, args ...string) (cmd *exec.Cmd, path string, stderr *bufio.Reader) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	cmd = exec.Command(os.Args[0], append([]string{"watchdog", "--file", path}, args...)...)
	cmd.Args[0] = "muster" // see TestMain
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if want := "listening on " + path + "\n"; line != want || err != nil {
		t.Fatalf("it said %q (%v), want %q", line, err, want)
	}
	return cmd, path, bufio.NewReader(errs)
}

// victim starts a process that waits to be killed.
func victim(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// endedBy is the signal that a process ended by.
func endedBy(t *testing.T, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("it ended with %v, want a signal", err)
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

func TestWatchdogStopsOnSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd, path, stderr := startWatchdog(t)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		text, _ := io.ReadAll(stderr)
		if err := cmd.Wait(); err != nil || len(text) > 0 {
			t.Errorf("after %v: %v: %s", sig, err, text)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %v the FIFO is there: %v", sig, err)
		}
	}
}

func TestWatchdogReaps(t *testing.T) {
	cmd, path, stderr := startWatchdog(t, "--events", "--run-id", "job7", "--max-interval", "0.5")
	worker := victim(t)
	client := &timer.FileClient{Path: path}
	at := time.Now().Add(200 * time.Millisecond)
	request := timer.Request{PID: worker.Process.Pid, ScopeID: "s\n", ExpirationTime: at, Signal: syscall.SIGTERM}
	if err := client.Send(request); err != nil {
		t.Fatal(err)
	}
	if got := endedBy(t, worker); got != syscall.SIGTERM {
		t.Errorf("the worker ended by %v, want SIGTERM", got)
	}
	if late := time.Since(request.ExpirationTime); late < 0 {
		t.Errorf("it was killed %v early", -late)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	var got []map[string]any
	for {
		line, err := stderr.ReadString('\n')
		if err != nil {
			break
		}
		if strings.HasPrefix(line, "W") {
			if !strings.Contains(line, "run_id=job7") {
				t.Errorf("logged %q, want the run id", line)
			}
			continue
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if stamp, ok := event["timestamp"].(float64); !ok || stamp < request.Seconds()-60 {
			t.Errorf("timestamp %v", event["timestamp"])
		}
		delete(event, "timestamp")
		got = append(got, event)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	event := func(name string) map[string]any {
		return map[string]any{"run_id": "job7", "watchdog_event": name}
	}
	about := func(name string) map[string]any {
		e := event(name)
		e["worker_pid"], e["scope_id"], e["signal"] = strconv.Itoa(request.PID), "s\n", "15"
		e["expiration_time"] = strconv.FormatFloat(request.Seconds(), 'f', -1, 64)
		return e
	}
	want := []map[string]any{event("watchdog started"), about("timer expired"), about("kill worker process"), event("watchdog stopped")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("events (-want +got)\n" + diff)
	}
}

// As PyTorch's server does, but it removes the FIFO first.
func TestWatchdogKillSelf(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		cmd, path, stderr := startWatchdog(t, "--kill-self")
		worker := victim(t)
		err := (&timer.FileClient{Path: path}).Send(timer.Request{PID: worker.Process.Pid, ScopeID: "s", ExpirationTime: time.Unix(1, 0), Signal: sig})
		if err != nil {
			t.Fatal(err)
		}
		if got := endedBy(t, worker); got != sig {
			t.Errorf("the worker ended by %v, want %v", got, sig)
		}
		_, _ = io.Copy(io.Discard, stderr)
		if got := endedBy(t, cmd); got != sig {
			t.Errorf("the watchdog ended by %v, want %v", got, sig)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the FIFO is there: %v", err)
		}
	}
}

// Nobody can have the watchdog kill itself.
func TestWatchdogSparesItself(t *testing.T) {
	cmd, path, stderr := startWatchdog(t)
	client := &timer.FileClient{Path: path}
	if err := client.Send(timer.Request{PID: cmd.Process.Pid, ScopeID: "s", ExpirationTime: time.Unix(1, 0), Signal: 9}); err != nil {
		t.Fatal(err)
	}
	line, err := stderr.ReadString('\n')
	if err != nil || !strings.Contains(line, "refused") || !strings.Contains(line, "pid="+strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("it logged %q, %v", line, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWatchdogErrors(t *testing.T) {
	t.Setenv(timer.EnvFile, "")
	dir := t.TempDir()
	file := filepath.Join(dir, "notes")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		status int
		want   []string
	}{
		{nil, console.ExitUsage, []string{"there is no FIFO to serve\nhint: name its path with --file"}},
		{[]string{"--file", file, "more"}, console.ExitUsage, []string{"'more'\nhint: leave it out"}},
		{[]string{"--file", file, "--max-interval", "x"}, console.ExitUsage, []string{"--max-interval cannot be 'x'"}},
		{[]string{"--max-interval=0", "--fifo", "x"}, console.ExitUsage, []string{"-fifo"}},
		{[]string{"--max-interval=NaN"}, console.ExitUsage, []string{"'NaN'", "--file"}},
		{[]string{"--file", file}, console.ExitError, []string{file, "a file of 8 bytes is there"}},
		{[]string{"--file", dir}, console.ExitError, []string{dir, "something else is there"}},
		{[]string{"--file", file + "/fifo"}, console.ExitError, []string{file, "not a directory"}},
		{[]string{"--file", dir + "/none/fifo"}, console.ExitError, []string{dir, "no such file or directory"}},
	} {
		var stdout, stderr strings.Builder
		if got := command.Start(t.Context(), "watchdog", watchdogCommand, tt.args, &stdout, &stderr); got != tt.status {
			t.Errorf("%q: status %d, want %d", tt.args, got, tt.status)
		}
		for _, part := range tt.want {
			if !strings.Contains(stderr.String(), part) {
				t.Errorf("%q: got %s, want %q in it", tt.args, &stderr, part)
			}
		}
	}
	if text, err := os.ReadFile(file); string(text) != "precious" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
