package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

func TestMayBeHardware(t *testing.T) {
	for _, tt := range []struct {
		name   string
		exit   process.Exit
		missed string
		stderr string
		want   bool
	}{
		{"a crash", process.Exit{PID: 4, Code: -6}, "", "", true},
		{"a deadline", process.Exit{PID: 4, Code: -9, StoppedBy: 9}, "timer", "", true},
		{"an error of CUDA", process.Exit{PID: 4, Code: 1}, "", "RuntimeError: CUDA error: uncorrectable ECC error encountered\n", true},
		{"another error", process.Exit{PID: 4, Code: 1}, "", "ValueError: boom\n", false},
		{"SIGKILL", process.Exit{PID: 4, Code: -9}, "", "", false},
		{"out of memory", process.Exit{PID: 4, Code: -6, OOMKilled: "oom_kill 0 -> 1"}, "", "", false},
		{"stopped", process.Exit{PID: 4, Code: -6, StoppedBy: 15}, "", "", false},
		{"not started", process.Exit{Code: 1}, "", "CUDA error", false},
	} {
		if got := MayBeHardware(tt.exit, tt.missed, []byte(tt.stderr)); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// What the kernel's log says since the workers' start concerns the worker that it names, and all
// where it names none.
func TestXids(t *testing.T) {
	records := []string{
		"4,1,100,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=7, before the workers' start",
		"4,2,200,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
		"6,3,201,-;usb 1-1: new device",
		"4,4,202,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"4,5,203,-;NVRM: Xid (PCI:0000:86:00): 31, pid=7, name=python3, Ch 00000010, intr 00000000. MMU Fault",
	}
	f := GPUFaults{index: map[string]string{"0000:3b:00": "3"}, said: []string{"GPU 1 has had 2 uncorrected errors"}, workers: []int{7, 8}}
	f.xids = xidsOf(func(each func(string)) {
		for _, r := range records {
			each(r)
		}
	}, 150)
	const all = "Xid 79 (it has fallen off the bus) of GPU 3; "
	for pid, want := range map[int]string{
		7: all + "Xid 31 (Ch 00000010) of GPU at 0000:86:00; GPU 1 has had 2 uncorrected errors",
		8: all + "GPU 1 has had 2 uncorrected errors",
	} {
		if diff := cmp.Diff(want, f.Of(pid)); diff != "" {
			t.Errorf("pid %d (-want +got):\n%s", pid, diff)
		}
	}
}

func TestCoreFile(t *testing.T) {
	for _, tt := range []struct{ pattern, usesPID, want string }{
		{"core\n", "0\n", "/data/core"},
		{"core\n", "1\n", "/data/core.41"},
		{"/var/cores/%h.%p.%s.%u%%\n", "1\n", "/var/cores/host0.41.6.UID%"},
		{"/var/cores/%e.%t\n", "0\n", "/var/cores/*.*"},
		{"|/usr/lib/systemd/systemd-coredump %P %u %g %s %t 9223372036854775808 %h\n", "0\n", "systemd-coredump has it: coredumpctl info 41"},
		{"|/usr/share/apport/apport -p%p -s%s\n", "0\n", "apport has it: see /var/crash and /var/lib/apport/coredump"},
		{"|/opt/collect %p\n", "0\n", "given to /opt/collect"},
		{"|\n", "0\n", ""},
		{"\n", "0\n", ""},
		{"core%", "0\n", "/data/core"},
	} {
		want := strings.ReplaceAll(tt.want, "UID", fmt.Sprint(os.Getuid()))
		if got := coreFile(tt.pattern, tt.usesPID, "/data", "host0", 41, syscall.SIGABRT); got != want {
			t.Errorf("%q: got %q, want %q", tt.pattern, got, want)
		}
	}
}

// A driver that does not answer is waited for as long as it may take, and no longer.
func TestFaultsTimeout(t *testing.T) {
	dir := t.TempDir()
	if err := testproc.WriteProgram(filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\nexec sleep 1000\n"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	began := time.Now()
	f := FindXids(func(func(string)) {}, began, nil)
	if f.AskDriver(); len(f.said) > 0 {
		t.Errorf("got %q", f.said)
	}
	if took := time.Since(began); took < faultsTimeout || took > 10*faultsTimeout {
		t.Errorf("it took %v", took)
	}
}
