package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/internal/test/testproc"
)

// recorded is what nvidia-smi -q says, as a driver 570 does of a GPU with errors; it is cut.
const recorded = `
==============NVSMI LOG==============

Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:86:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Performance State                     : P0
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 2
    Remapped Rows
        Uncorrectable Error               : 1
        Pending                           : Yes
`

// The report of a worker that crashed has what nvidia-smi says of the GPUs, in short; the rest is beside it.
func TestFaultOfGPU(t *testing.T) {
	dir := t.TempDir()
	answer := "0, 00000000:3B:00.0, 0, No, No, [N/A]\n1, 00000000:86:00.0, 2, Yes, No, [N/A]\n" // of a driver 570, with the faults
	if err := testproc.WriteProgram(filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\n[ \"$1\" = -q ] && printf '%s' '"+recorded+"' || printf '%s' '"+answer+"'\n"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for script, want := range map[string]string{
		"ulimit -c 0; kill -ABRT $$": "; GPU 1 has had 2 uncorrected errors of memory (ECC) since the driver was loaded; GPU 1 has damaged memory that waits to be taken out of use",
		"exit 3":                     "exit code 3",
	} {
		j := newJob(t, "", "", 1)
		j.Spec.Entrypoint, j.Spec.Args = "/bin/sh", func(int, int) []string { return []string{"-c", script} }
		r := j.mustRun(t)
		if got := r.Report.Root().Cause; !strings.HasSuffix(got, want) {
			t.Errorf("%s: the cause is %q, want at its end %q", script, got, want)
		}
		details, err := os.ReadFile(filepath.Join(filepath.Dir(r.ReportFile), "nvidia-smi.txt"))
		if crashed := strings.Contains(script, "ABRT"); crashed && string(details) != recorded || !crashed && err == nil {
			t.Errorf("%s: beside %s is %q, %v", script, r.ReportFile, details, err)
		}
	}
}

// An nvidia-smi that does not come to an end holds up the agent's own end only for some seconds.
func TestDetailsTimeout(t *testing.T) {
	dir := t.TempDir()
	if err := testproc.WriteProgram(filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\n[ \"$1\" != -q ] || exec sleep 1000\n"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	j := newJob(t, "", "", 1)
	j.Spec.Entrypoint, j.Spec.Args = "/bin/sh", func(int, int) []string { return []string{"-c", "ulimit -c 0; kill -ABRT $$"} }
	began := time.Now()
	r := j.mustRun(t)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(r.ReportFile), "nvidia-smi.txt")); err == nil {
		t.Error("there is a file of what it has not said")
	}
}

// Other hosts hear at once of an Xid, in the record of the failure, though the job continues.
func TestXidInRecord(t *testing.T) {
	l := newLab(t, abc, func(h *host) {
		h.MaxRestarts = 1
		agent.SetKernelLog(&h.Config, func(each func(string)) {
			if h.name == "b" {
				each("4,1,9000000000000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
			}
		})
	})
	l.start(abc...)
	l.all(abc...)["b"].tell(t, "exit 1 RuntimeError: CUDA error: unspecified launch failure")
	for _, w := range l.all(abc...) {
		w.tell(t, "succeed")
	}
	l.succeeds(abc...)
	for _, name := range abc {
		report, err := os.ReadFile(filepath.Join(l.hosts[name].dir, "attempt_0", "report.json"))
		if want := `"gpu": "Xid 79 (it has fallen off the bus) of GPU at 0000:3b:00"`; err != nil || !strings.Contains(string(report), want) {
			t.Errorf("%s: %v, the report lacks %s:\n%s", name, err, want, report)
		}
	}
}
