//go:build linux

package e2e

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each signal reaches the workers as itself, and the job ends with status 1.
func TestSignalsReachWorkers(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		name := unix.SignalName(sig)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2", "catch:"+name[3:], "exit:0")
			j.await("ready 0", "ready 1").signal(sig)
			j.await(name+" at 0", name+" at 1").want(1).noneLeft(0).says(name)
		})
	}
}

// The list of signals is the user's.
func TestSignalsToHandle(t *testing.T) {
	t.Parallel()
	j := workers(t, muster(t), setup{}, "--standalone --signals-to-handle SIGUSR1,SIGTERM", "catch:USR1", "exit:0")
	j.await("ready 0").signal(syscall.SIGUSR1)
	j.await("SIGUSR1 at 0").want(1)
	// As under torchrun, a signal that is not listed does to the launcher what it
	// does to any program; other than there, the workers die with it.
	j = workers(t, muster(t), setup{}, "--standalone --signals-to-handle SIGUSR1", "ready", "hang")
	j.await("ready 0").signal(syscall.SIGTERM)
	j.want(-15).noneLeft(soon)
}

func TestSecondSignalSkipsTheGrace(t *testing.T) {
	t.Parallel()
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --shutdown-timeout 3600",
			"catch:TERM", "ignore:TERM,INT", "report:deaf", "hang")
		j.await("ready 0", "ready 1").signal(syscall.SIGTERM)
		j.await("deaf", "deaf").insist(second)
		j.want(1).noneLeft(0)
	}
}

// insist sends a signal again and again until the job has taken it: the same one soon
// after the first may be Slurm's echo, and does not count.
func (j *job) insist(sig syscall.Signal) {
	j.t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !strings.Contains(j.errs(), "[M1082]"); {
		_ = j.cmd.Process.Signal(sig)
		select {
		case <-j.ended:
			return
		case <-again.C:
		}
	}
}

// The same while the peers of a failed worker are being stopped.
func TestSignalSkipsTheGraceAfterAFailure(t *testing.T) {
	t.Parallel()
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --shutdown-timeout 3600",
		"r0:catch:TERM", "r0:ignore:TERM,INT", "r0:report:deaf", "r1:gate", "r1:exit:3", "hang")
	j.await("ready 0").gate.Open()
	j.await("deaf")
	j.signal(syscall.SIGINT)
	j.signal(syscall.SIGTERM) // another one: two of a kind may arrive as one
	j.want(1).noneLeft(0)
}

func TestShutdownTimeoutByEnvironment(t *testing.T) {
	t.Parallel()
	for _, seconds := range []string{"0", "1"} {
		s := setup{env: []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" + seconds}}
		j := workers(t, muster(t), s, "--standalone --nproc-per-node 2", "ignore:TERM,INT", "ready", "hang")
		j.await("ready 0", "ready 1").signal(syscall.SIGTERM)
		j.want(1).noneLeft(0)
	}
}

// A worker has the grace that it was given: it may take its time to stop.
func TestGraceIsKept(t *testing.T) {
	t.Parallel()
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --shutdown-timeout 60",
		"catch:TERM", "report:saving $RANK", "gate", "report:saved $RANK", "exit:0")
	j.await("ready 0", "ready 1").signal(syscall.SIGTERM)
	j.await("saving 0", "saving 1").gate.Open()
	j.await("saved 0", "saved 1").want(1).says("received signal SIGTERM (15)", "grace=1m0s")
}

// Started by nohup, SIGHUP means nothing.
func TestNohup(t *testing.T) {
	t.Parallel()
	s := setup{wrap: []string{"/bin/sh", "-c", `trap "" HUP; exec "$@"`, "sh"}}
	j := workers(t, muster(t), s, "--standalone", "ready", "gate", "exit:0")
	j.await("ready 0").signal(syscall.SIGHUP)
	j.gate.Open()
	j.want(0)
}

// Each attempt has a number, a log directory and an empty store of its own, and a
// port other than the attempt before.
func TestRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := workers(t, muster(t), setup{}, "--standalone --nproc-per-node 2 --max-restarts 2 -r 3 --log-dir "+dir,
		"report:attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS port $MASTER_PORT rank $RANK",
		`print:hello from $RANK\n`, "gate", "r1:exit:7", "hang")
	j.gate.Open()
	j.want(1).noneLeft(0).says("in attempt_2 (after 2 of 2 restarts)", "exitcode  : 7")
	ports := map[string]string{}
	seen := map[string]bool{}
	for _, line := range j.rest() {
		f := strings.Fields(line)
		seen[f[1]+" "+f[7]] = true
		if f[3] != "2" {
			t.Errorf("TORCHELASTIC_MAX_RESTARTS=%s, want 2", f[3])
		}
		if other, ok := ports[f[1]]; ok && other != f[5] {
			t.Errorf("ranks of attempt %s have ports %s and %s", f[1], other, f[5])
		}
		ports[f[1]] = f[5]
	}
	for attempt := range 3 {
		n := strconv.Itoa(attempt)
		// Rank 0 may be stopped before it can report.
		if !seen[n+" 1"] {
			t.Errorf("attempt %d: rank 1 did not report", attempt)
		}
		want := []string{"stderr.log", "stdout.log"}
		for rank := range 2 {
			attemptDir := one(t, dir, "*/attempt_"+n)
			if got := glob(t, attemptDir+"/"+strconv.Itoa(rank), "*"); !slices.Equal(got, want) {
				t.Errorf("attempt %d, rank %d has files %q, want %q", attempt, rank, got, want)
			}
		}
		if got := contents(t, one(t, dir, "*/attempt_"+n+"/1/stdout.log")); got != "hello from $RANK\n" {
			t.Errorf("attempt %d, rank 1 printed %q", attempt, got)
		}
	}
	if len(ports) != 3 || ports["0"] == ports["1"] || ports["1"] == ports["2"] {
		t.Errorf("ports by attempt: %v, want another one in each", ports)
	}
}

// Jobs started at the same instant keep out of each other's way.
func TestManyJobsAtOnce(t *testing.T) {
	t.Parallel()
	const n = 8
	jobs := make([]*job, n)
	flags := []string{"--standalone", "", "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id same"}
	for i := range jobs {
		jobs[i] = workers(t, muster(t), setup{}, "--nproc-per-node 2 "+flags[i%len(flags)], "report:$MASTER_PORT", "gate", "exit:0")
	}
	ports := map[string]int{}
	for i, j := range jobs {
		port := j.line()
		if other := j.line(); other != port {
			t.Errorf("job %d: ports %s and %s", i, port, other)
		}
		if other, ok := ports[port]; ok {
			t.Errorf("jobs %d and %d share port %s", i, other, port)
		}
		ports[port] = i
	}
	for _, j := range jobs {
		j.gate.Open()
	}
	for _, j := range jobs {
		j.want(0)
	}
}

// The same where the workers host the store themselves: the port was found for
// them and must still be free when they take it.
func TestManyJobsWithTheirOwnStore(t *testing.T) {
	t.Parallel()
	s := withForks(t, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
	program := script(t, "meet.py", "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); d.destroy_process_group()")
	var jobs []*job
	for range 3 {
		jobs = append(jobs, start(t, muster(t), s, "--standalone --nproc-per-node 2", program))
	}
	for _, j := range jobs {
		j.want(0)
	}
}
