package agent_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/test/testproc"
)

// The report of a worker that crashed has what nvidia-smi says of the GPUs.
func TestFaultOfGPU(t *testing.T) {
	dir := t.TempDir()
	answer := "0, 00000000:3B:00.0, 0, No, No, [N/A]\n1, 00000000:86:00.0, 2, Yes, No, [N/A]\n" // of a driver 570, with the faults
	if err := testproc.WriteProgram(filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\nprintf '%s' '"+answer+"'\n"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for script, want := range map[string]string{
		"ulimit -c 0; kill -ABRT $$": "; GPU 1 has had 2 uncorrected errors of memory (ECC) since the driver was loaded; GPU 1 has damaged memory that waits to be taken out of use",
		"exit 3":                     "exit code 3",
	} {
		j := newJob(t, "", "", 1)
		j.Spec.Entrypoint, j.Spec.Args = "/bin/sh", func(int, int) []string { return []string{"-c", script} }
		if got := j.mustRun(t).Report.Root().Cause; !strings.HasSuffix(got, want) {
			t.Errorf("%s: the cause is %q, want at its end %q", script, got, want)
		}
	}
}
