//go:build linux

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/health/jobstate"
	"github.com/muster-run/muster/internal/test/pypeer"
)

// What a host with a GPU does with a job; skipped on a host without one, or whose PyTorch sees none.
// The stacks of workers that hang want py-spy, which `make venv` installs.
func TestGPU(t *testing.T) {
	if _, err := os.Stat("/dev/nvidia0"); err != nil {
		t.Skip("needs an NVIDIA GPU: ", err)
	}
	if out, err := exec.Command(pypeer.Python(t), "-c", "import torch; torch.zeros(1, device='cuda')").CombinedOutput(); err != nil {
		t.Skipf("PyTorch sees no GPU: %v\n%s", err, out)
	}
	t.Run("hang", testGPUHang)
	t.Run("killed", testGPUKilled)
	t.Run("failure", testGPUFailure)
	t.Run("state", testGPUState)
}

// gpuJob runs testdata/gpu.py, whose workers share a GPU.
func gpuJob(t *testing.T, flags, backend string, steps ...string) *job {
	t.Helper()
	flags = "--standalone --nproc-per-node " + strconv.Itoa(len(steps)) + " " + flags
	return start(t, muster(t), withPython(t), flags, append([]string{"testdata/gpu.py", backend}, steps...)...)
}

// usedMiB is the memory in use of the first GPU.
func usedMiB(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	n, bad := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || bad != nil {
		t.Fatalf("nvidia-smi: %q, %v, %v", out, err, bad)
	}
	return n
}

// A hang with work on the GPU is found unless all ranks spin for theirs; the rank that does not
// come is the cause.
func testGPUHang(t *testing.T) {
	for _, tt := range []struct{ name, zero, one, cause, summary string }{
		{"it waits for a collective", "reduce", "wait", "rank 1 ", "rank 0 in all_reduce ("},
		{"it spins for its GPU", "spin", "wait", "rank 1 ", "rank 0 in torch.cuda synchronize ("},
		{"it blocks for its GPU", "block", "wait", "rank 1 ", "rank 0 in torch.cuda synchronize ("},
		{"the other spins for its GPU", "reduce", "spin", "rank 1 ", "rank 1 in torch.cuda synchronize ("},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			gpuJob(t, "--hang-timeout 5 --max-restarts 1 --log-dir "+dir, "gloo", tt.zero, tt.one).want(0).noneLeft(0)
			var report struct{ Cause, Autopsy string }
			readJSON(t, filepath.Join(dir, "*", "attempt_0", "report.json"), &report)
			if !strings.HasPrefix(report.Cause, tt.cause) || !strings.Contains(report.Autopsy, tt.summary) {
				t.Errorf("cause: %s; autopsy: %s", report.Cause, report.Autopsy)
			}
		})
	}
}

// The memory of the GPU is free again when the launcher has been killed, also while a kernel runs.
func testGPUKilled(t *testing.T) {
	before := usedMiB(t)
	j := gpuJob(t, "", "gloo", "fill", "fill")
	awaitText(j, "filled")
	if n := usedMiB(t); n < before+4096 {
		t.Fatalf("%d MiB are in use, %d before", n, before)
	}
	j.signal(syscall.SIGKILL)
	j.noneLeft(soon)
	for end := time.Now().Add(soon); usedMiB(t) > before+1024; {
		if time.Now().After(end) {
			t.Fatalf("%d MiB are in use, %d before", usedMiB(t), before)
		}
	}
}

// What PyTorch, NCCL and the kernel say of a failure is its cause.
func testGPUFailure(t *testing.T) {
	t.Run("assert", func(t *testing.T) {
		j := gpuJob(t, "--report muster", "gloo", "trip").want(1).says("CUDA error: device-side assert triggered")
		if log, err := exec.Command("dmesg").Output(); err == nil && strings.Contains(string(log), "NVRM: Xid") {
			j.says("device-side assert triggered; Xid ", " of GPU 0")
		}
	})
	t.Run("two ranks on one GPU", func(t *testing.T) {
		gpuJob(t, "--report muster", "nccl", "reduce", "reduce").want(1).says(": Duplicate GPU detected : rank ", "start one per GPU")
	})
	t.Run("exit code", func(t *testing.T) {
		gpuJob(t, "--max-restarts 1 --warm", "nccl", "end").want(0).says(`on host`, `: exit code 3" restart=1/1`)
	})
}

// The state has the use of the GPU.
func testGPUState(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "health")
	j := gpuJob(t, "--health-addr unix:"+socket, "gloo", "spin")
	p := probe(t, socket)
	for end := time.Now().Add(patience); ; {
		var s jobstate.State
		_, body := p.get("/v1/state", patience)
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		if len(s.Workers) == 1 && s.Workers[0].GPU != nil && s.Workers[0].GPU.Percent != nil && *s.Workers[0].GPU.Percent > 0 && s.Workers[0].GPU.UsedBytes > 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("no use of the GPU: %s", body)
		}
	}
	p.end()
	j.signal(syscall.SIGTERM)
	j.status()
}
