package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A real job is listed, signaled, restarted and stopped.
func TestJobs(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("needs sh")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if err := os.Chmod(os.Getenv("XDG_RUNTIME_DIR"), 0o700); err != nil {
		t.Fatal(err)
	}
	runID := fmt.Sprint("jobs-", os.Getpid())
	cmd := exec.Command("muster", "run", "--rdzv-id", runID, "--log-dir", t.TempDir(), "--no-python", "sh", "-c",
		`trap 'echo got it' USR1; trap 'exit 0' TERM; echo begun; while :; do sleep 0.05; done`)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}()
	lines := bufio.NewScanner(stdout)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the worker says %q, want %q", lines.Text(), want)
		}
	}
	muster := func(args ...string) (string, error) {
		out, err := exec.Command("muster", args...).CombinedOutput()
		return string(out), err
	}
	must := func(want string, args ...string) {
		t.Helper()
		// A worker may write before its agent has noted that all of them run.
		out, err := muster(args...)
		for err != nil && strings.Contains(out, "at the moment") {
			out, err = muster(args...)
		}
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("muster %s: %v: %s; want %q", strings.Join(args, " "), err, out, want)
		}
	}
	says("begun")
	must("sent SIGUSR1 to rank 0 (pid ", "signal", "usr1", runID, "--rank", "0")
	says("got it")
	must(runID, "ps")
	out, err := muster("ps", "--json")
	var list struct {
		Version int
		Jobs    []psJob
	}
	if jsonErr := json.Unmarshal([]byte(out), &list); err != nil || jsonErr != nil || list.Version != 1 {
		t.Fatalf("ps --json: %v, %v: %s", err, jsonErr, out)
	}
	found := false
	for _, j := range list.Jobs { // other tests' jobs may be among them
		found = found || j.Job != nil && j.RunID == runID && j.PID == cmd.Process.Pid && len(j.Workers) == 1
	}
	if !found {
		t.Errorf("ps --json: %s", out)
	}
	must("restarting the workers of job '"+runID+"'", "restart", fmt.Sprint(cmd.Process.Pid))
	says("begun")
	for _, tt := range [][]string{{"rank 7 does not run on this host", "signal", "USR1", runID, "--rank", "7"}, {"has the run ID or pid 'no-such'", "stop", "no-such"}, {"exclude each other", "stop", "x", "--all"}} {
		if out, err := muster(tt[1:]...); err == nil || !strings.Contains(out, tt[0]) {
			t.Errorf("muster %v: %v: %s", tt[1:], err, out)
		}
	}
	must("has stopped", "stop", runID)
	if out, _ := muster("ps"); strings.Contains(out, runID) {
		t.Errorf("ps after stop: %s", out)
	}
}
