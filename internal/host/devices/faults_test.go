package devices

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseXid(t *testing.T) {
	for _, tt := range []struct {
		line string
		want Xid
		ok   bool
	}{
		{"[ 1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", Xid{"0000:3b:00", 79, 1234, "GPU has fallen off the bus."}, true},
		{"NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error", Xid{"0000:3b:00", 48, 0, "An uncorrectable double bit error"}, true},
		{"NVRM: Xid (PCI:0000:3b:00): 119", Xid{PCI: "0000:3b:00", Code: 119}, true},
		{"NVRM: Xid (PCI:0000:3b:00): none", Xid{}, false},
		{"NVRM: GPU at PCI:0000:3b:00", Xid{}, false},
		{"", Xid{}, false},
	} {
		if got, ok := ParseXid(tt.line); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%q: got %+v, %v, want %+v, %v", tt.line, got, ok, tt.want, tt.ok)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         []string
		index        map[string]string
	}{
		{"well", `echo "0, 00000000:3B:00.0, 0, No, No, [N/A]"`, nil, map[string]string{"0000:3b:00": "0"}},
		{"without ECC", `echo "0, 00000000:01:00.0, [N/A], [N/A], [N/A], [N/A]"`, nil, map[string]string{"0000:01:00": "0"}},
		{"broken", `echo "0, 00000000:3B:00.0, 0, No, No, [N/A]"; echo "1, 00000000:86:00.0, 1, No, Yes, [N/A]"; echo "2, 00000000:AF:00.0, 0, N/A, N/A, Yes"`, []string{
			"GPU 1 has had 1 uncorrected error of memory (ECC) since the driver was loaded", "GPU 1 has a row of memory that could not be remapped",
			"GPU 2 has damaged memory that waits to be taken out of use",
		}, map[string]string{"0000:3b:00": "0", "0000:86:00": "1", "0000:af:00": "2"}},
		{"lost", `echo "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"; exit 15`, []string{
			"nvidia-smi: exit status 15: Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"}, map[string]string{}},
		{"without a driver", `echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9`, nil, map[string]string{}},
		{"old", `echo 'Field "remapped_rows.pending" is not a valid field to query.'; exit 2`, nil, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nvidiaSMI(t, tt.script)
			got, index := Faults(t.Context())
			if diff := cmp.Diff(tt.want, got) + cmp.Diff(tt.index, index); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// All that nvidia-smi says is kept, also why it says nothing, but not that there is none.
func TestDetails(t *testing.T) {
	for script, want := range map[string]string{
		`echo "asked for $*"`:                "asked for -q\n",
		"echo No devices were found; exit 6": "nvidia-smi -q: exit status 6: No devices were found\n",
	} {
		nvidiaSMI(t, script)
		if got := string(Details(t.Context())); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	t.Setenv("PATH", "/nowhere")
	if got := Details(t.Context()); got != nil {
		t.Errorf("without nvidia-smi: %q", got)
	}
}
