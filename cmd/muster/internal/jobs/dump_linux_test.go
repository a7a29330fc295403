package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-run/muster/cmd/muster/internal/command"
	"github.com/muster-run/muster/cmd/muster/internal/console"
	"github.com/muster-run/muster/internal/job/autopsy"
)

// dump runs `muster dump`.
func dump(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = command.Start(t.Context(), "dump", Dump, args, &out, &errs)
	return status, out.String(), errs.String()
}

// startRank starts a process that says that it is a worker, and waits until it runs.
func startRank(t *testing.T, runID string, rank int) (pid int) {
	t.Helper()
	cmd := exec.Command("cat") // it says what it is told, so it runs once that comes back
	cmd.Env = append(os.Environ(), "TORCHELASTIC_RUN_ID="+runID, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.WriteString(in, "ready\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestDumpJob(t *testing.T) {
	runID := fmt.Sprint("dump-", os.Getpid())
	pid := startRank(t, runID, 0)
	startRank(t, runID, 1)

	status, stdout, stderr := dump(t, runID)
	if status != console.ExitOK || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	for _, want := range []string{"no Python stacks of ranks 0-1:\n", "is not a Python interpreter"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("stdout has no %q:\n%s", want, stdout)
		}
	}

	dir := filepath.Join(t.TempDir(), "evidence")
	status, stdout, stderr = dump(t, runID, "--json", "--out", dir, "--timeout", "2.5")
	if status != console.ExitOK || !strings.Contains(stderr, "wrote "+dir+"/autopsy.txt and "+dir+"/autopsy.json") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	var got struct {
		Reason  string
		Workers []struct{ Rank, PID int }
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Reason != "on demand, job "+runID || len(got.Workers) != 2 || got.Workers[0].PID != pid || got.Workers[1].Rank != 1 {
		t.Errorf("JSON: %+v", got)
	}
	if file, err := os.ReadFile(filepath.Join(dir, "autopsy.json")); string(file) != stdout {
		t.Errorf("the file differs from what was printed, %v", err)
	}

	status, stdout, _ = dump(t, "--pid", fmt.Sprint(pid), fmt.Sprint("--pid=", os.Getpid()))
	if want := fmt.Sprint("process ", os.Getpid()); status != console.ExitOK || !strings.Contains(stdout, want) {
		t.Errorf("of processes: status %d, %q, want %q", status, stdout, want)
	}

	status, _, stderr = dump(t, "nobody's")
	if status != console.ExitError || !strings.Contains(stderr, "on this host has the run ID or pid 'nobody\\'s'\n") {
		t.Errorf("of another job: status %d, stderr %q", status, stderr)
	}
}

// What other users' processes say of themselves does nothing to the terminal.
func TestDumpHostile(t *testing.T) {
	var out, errs strings.Builder
	report := &autopsy.Report{Workers: []autopsy.Worker{{State: "sleeping", Python: autopsy.Python{Source: "py-spy", Threads: []autopsy.Thread{{
		Name: "Main\x1b[2J", Main: true, Frames: []autopsy.Frame{{Function: "f\x1b[31m", File: "/a\u009b2J.py", Line: 1}},
	}}}}}}
	red := func(context.Context, *command.Command, []string) error { return errors.New("job \x1b[31mred") }
	command.Start(t.Context(), "dump", red, nil, &out, &errs)
	got := report.Answer() + report.Text() + errs.String()
	if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 }) {
		t.Errorf("control characters in %q", got)
	}
	for _, want := range []string{"rank 0 in f (a2J.py:1)", "error: job red\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestDumpUsage(t *testing.T) {
	for _, tt := range []struct {
		args   string
		status int
		want   string
	}{
		{"--pid x", console.ExitUsage, "--pid cannot be 'x'\nhint: give the number of a process"},
		{"--pid 1,0", console.ExitUsage, "--pid cannot be '0'\nhint: give the number of a process"},
		{"--pid 1 a", console.ExitUsage, "exclude each other"},
		{"--job a", console.ExitUsage, "unknown option --job"},
		{"--timeout 0", console.ExitUsage, "--timeout cannot be '0'\nhint: give seconds"},
		{"--timeout NaN", console.ExitUsage, "--timeout cannot be 'NaN'\nhint: give seconds"},
		{"--timeout 1e9", console.ExitUsage, "at most 3600"},
		{"--jobs a", console.ExitUsage, "jobs"},
		{"a train.py", console.ExitUsage, "unexpected argument 'train.py'"},
		{"--pid 1073741824", console.ExitError, "process 1073741824"},
	} {
		status, stdout, stderr := dump(t, strings.Fields(tt.args)...)
		if status != tt.status || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("muster dump %s: status %d, stdout %q, stderr %q; want status %d, %q", tt.args, status, stdout, stderr, tt.status, tt.want)
		}
	}
	if status, stdout, stderr := dump(t, "--help"); status != console.ExitOK || stdout != command.Usage("dump") || stderr != "" {
		t.Errorf("help: status %d, %q, %q", status, stdout, stderr)
	}
}
