//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// However a job ends, nothing of it is left: not the workers, and none of the
// children they had, even if those ignore signals, lead sessions of their own or
// have lost their parents.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	nothingIsLeft(t, setup{})
}

// The same where no control group can be made, as for most people who are not
// root.
func TestNothingIsLeftWithoutCgroup(t *testing.T) {
	t.Parallel()
	hide := []string{"unshare", "--mount", "/bin/sh", "-c",
		`for d in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do umount -l "$d" || exit 77; done; exec "$@"`, "sh"}
	if err := exec.Command(hide[0], append(hide[1:], "/bin/true")...).Run(); err != nil {
		t.Skipf("needs to unmount control groups in a namespace of its own: %v", err)
	}
	nothingIsLeft(t, setup{wrap: hide})
}

func nothingIsLeft(t *testing.T, s setup) {
	// Each rank leaves three grandchildren, see brood.
	grandchildren := slices.Repeat([]string{"grandchild"}, 6)
	for _, tt := range []struct {
		name   string
		flags  string
		steps  []string // after the brood
		stop   func(*job)
		status int
		within time.Duration // from the launcher's end
	}{
		{name: "success", flags: "--helper-timeout 0", steps: []string{"gate", "exit:0"}, stop: func(j *job) { j.gate.Open() }, status: 0},
		{name: "failure", flags: "--shutdown-timeout 3", steps: []string{"gate", "r1:exit:5", "hang"}, stop: func(j *job) { j.gate.Open() }, status: 1},
		{name: "failure with deaf peers", flags: "--shutdown-timeout 1", steps: []string{"ignore:TERM,INT", "gate", "r1:exit:5", "hang"}, stop: func(j *job) { j.gate.Open() }, status: 1},
		{name: "restarts", flags: "--max-restarts 1 --shutdown-timeout 3", steps: []string{"gate", "r1:exit:5", "hang"}, stop: func(j *job) { j.gate.Open() }, status: 1},
		{name: "SIGTERM", flags: "--shutdown-timeout 3", steps: []string{"ready", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGTERM)
		}, status: 1},
		{name: "SIGTERM with deaf workers", flags: "--shutdown-timeout 1", steps: []string{"ignore:TERM,INT", "ready", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGTERM)
		}, status: 1},
		{name: "SIGINT twice", flags: "--shutdown-timeout 3600", steps: []string{"catch:INT", "ignore:TERM,INT", "report:deaf", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGINT)
			j.await("deaf", "deaf").insist(syscall.SIGINT)
		}, status: 1},
		{name: "SIGKILL", steps: []string{"ready", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGKILL)
		}, status: -9, within: soon},
		{name: "SIGKILL with deaf workers", steps: []string{"ignore:TERM,INT,HUP", "ready", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGKILL)
		}, status: -9, within: soon},
		{name: "a signal that is not handled", flags: "--signals-to-handle SIGINT", steps: []string{"ready", "hang"}, stop: func(j *job) {
			j.signal(syscall.SIGTERM)
		}, status: -15, within: soon},
		{name: "a signal that means nothing", flags: "--helper-timeout 0.5", steps: []string{"ready", "gate", "exit:0"}, stop: func(j *job) {
			j.signal(syscall.SIGUSR1)
			j.gate.Open()
		}, status: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			steps := append([]string{"brood"}, tt.steps...)
			j := workers(t, muster(t), s, "--standalone --nproc-per-node 2 "+tt.flags, steps...)
			j.await(grandchildren...)
			if slices.Contains(tt.steps, "ready") || slices.Contains(tt.steps, "catch:INT") {
				j.await("ready 0", "ready 1")
			}
			tt.stop(j)
			j.want(tt.status).noneLeft(tt.within)
		})
	}
}

// The shell leaves what it has started to the program that it executes: what reads the job's output
// reads it to the end, across a restart, and a helper of an entry point outlives the job.
func TestWhatTheShellHasStartedLivesOn(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	for name, wrap := range map[string]string{
		"process substitution": `exec "$@" > >(cat >"$0") 2>&1`,
		"entry point":          `exec > >(while read -r line; do echo "$line" >>"$0"; done) 2>&1; exec "$@"`,
	} {
		t.Run(name, func(t *testing.T) {
			j := start(t, muster(t), setup{wrap: []string{"bash", "-c", wrap, log}},
				"--standalone --max-restarts 1 --no-python", "sh", "-c", "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 3")
			j.want(1).noneLeft(soon)
			text, err := os.ReadFile(log)
			if err != nil || !strings.Contains(string(text), "attempt 1") || !strings.Contains(string(text), "Root Cause") {
				t.Errorf("%v; the log ends with\n%s", err, text)
			}
			_ = os.Remove(log)
		})
	}
	j := workers(t, muster(t), setup{wrap: []string{"bash", "-c", `sleep 3600 & exec "$@"`, "sh"}}, "--standalone", "exit:0")
	j.want(0)
	left := j.tag.Processes()
	if len(left) != 1 {
		t.Errorf("processes left: %v, want the helper", left)
	}
	for pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// What a worker that has succeeded leaves running has time to come to its end, and muster says that it waits.
func TestHelperAfterSuccess(t *testing.T) {
	t.Parallel()
	j := start(t, muster(t), setup{}, "--standalone --no-python", append([]string{"sh", "-c", `setsid "$@" &`, "sh"}, worker("gate", "report:uploaded")...)...)
	j.awaitErrs("waiting for what it left running", 1)
	j.gate.Open()
	j.await("uploaded").want(0).noneLeft(0)
}

// A process that somebody has put among the workers keeps their cgroup from being
// removed. The job has succeeded all the same.
func TestCgroupIsBusyAtTheEnd(t *testing.T) {
	t.Parallel()
	j := workers(t, muster(t), setup{}, "--standalone", "ready", "gate", "exit:0")
	j.await("ready 0")
	fds := fmt.Sprintf("/proc/%d/fd", j.cmd.Process.Pid)
	for _, fd := range glob(t, fds, "*") {
		path, _ := os.Readlink(filepath.Join(fds, fd))
		if !strings.HasPrefix(filepath.Base(path), "muster-") || !strings.HasPrefix(path, "/sys/fs/cgroup") {
			continue
		}
		dir, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		other := exec.Command("cat") // ends with its stdin
		other.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		in, err := other.StdinPipe()
		if err == nil {
			err = other.Start()
		}
		if dir.Close(); err != nil {
			t.Fatal(err)
		}
		j.gate.Open()
		j.want(0).says("the workers' cgroup stays")
		in.Close()
		_ = other.Wait()
		return
	}
	t.Skip("needs the right to make a cgroup")
}
