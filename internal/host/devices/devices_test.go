package devices_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/host/devices"
	"github.com/muster-run/muster/internal/test/pypeer"
)

// tree makes a file system of names and contents.
func tree(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func merge(trees ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, t := range trees {
		maps.Copy(all, t)
	}
	return all
}

func nvidia(n int) map[string]string {
	t := map[string]string{"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/nvidia-caps/nvidia-cap1": ""}
	for i := range n {
		// The driver numbers devices in another order than PCI's.
		minor := n - 1 - i
		t[fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02X:00.0/information", 0x1a+i)] = fmt.Sprintf(
			"Model: \t\t NVIDIA H100\nIRQ:   \t\t 45\nGPU UUID: \t GPU-%d%d%d%d-aa\nDevice Minor: \t %d\nGPU Excluded:\t No\n", i, i, i, i, minor)
		t[fmt.Sprintf("dev/nvidia%d", minor)] = ""
	}
	return t
}

func amd(n int) map[string]string {
	t := map[string]string{
		"dev/kfd": "",
		"sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
	}
	for i := range n {
		t[fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d/properties", i+1)] = fmt.Sprintf(
			"cpu_cores_count 0\nsimd_count 440\nlocation_id %d\ndomain 0\ndrm_render_minor %d\nunique_id %d\n", (0x20+i)<<8|1<<3, 128+i, 0xabc0+i)
		t[fmt.Sprintf("dev/dri/renderD%d", 128+i)] = ""
	}
	return t
}

func intel(addresses ...string) map[string]string {
	t := map[string]string{"sys/class/drm/card0/device/vendor": "0x8086\n"}
	for i, a := range addresses {
		name := fmt.Sprintf("renderD%d", 140-i)
		t["dev/dri/"+name] = ""
		t["sys/class/drm/"+name+"/device/vendor"] = "0x8086\n"
		t["sys/class/drm/"+name+"/device/uevent"] = "DRIVER=xe\nPCI_SLOT_NAME=" + a + "\n"
	}
	return t
}

func without(t map[string]string, names ...string) map[string]string {
	t = maps.Clone(t)
	for _, name := range names {
		delete(t, name)
	}
	return t
}

const (
	smiTwo  = "GPU-0000-aa, 00000000:1A:00.0\nGPU-1111-aa, 00000000:1B:00.0\n"
	smiHelp = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
)

func TestAccelerators(t *testing.T) {
	type env = map[string]string
	tests := []struct {
		name  string
		files map[string]string
		env   env
		smi   string // what nvidia-smi says; "" if it must not be asked
		want  string // addresses
		err   string
	}{
		{name: "nothing", files: map[string]string{"dev/null": ""}},
		{name: "nvidia", files: nvidia(3), want: "0000:1a:00.0 0000:1b:00.0 0000:1c:00.0"},
		{name: "nvidia before amd", files: merge(nvidia(1), amd(2)), want: "0000:1a:00.0"},
		{name: "nvidia list", files: nvidia(4), env: env{"CUDA_VISIBLE_DEVICES": "2,0"}, want: "0000:1c:00.0 0000:1a:00.0"},
		{name: "nvidia all hidden", files: merge(nvidia(4), amd(1)), env: env{"CUDA_VISIBLE_DEVICES": ""}},
		{name: "nvidia by UUID", files: nvidia(4), env: env{"CUDA_VISIBLE_DEVICES": "GPU-33,GPU-1111-aa"}, want: "0000:1d:00.0 0000:1b:00.0"},
		{name: "nvidia in a container", files: without(nvidia(4), "dev/nvidia3", "dev/nvidia1"), want: "0000:1b:00.0 0000:1d:00.0"},
		{name: "driver without device nodes", files: without(nvidia(2), "dev/nvidia0", "dev/nvidia1")},
		{name: "MIG", files: nvidia(1), env: env{"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, want: "?"},
		{name: "UUIDs not known yet", files: merge(nvidia(1), map[string]string{
			"proc/driver/nvidia/gpus/0000:1B:00.0/information": "GPU UUID: GPU-????????\nDevice Minor: 0\n",
		}), env: env{"CUDA_VISIBLE_DEVICES": "GPU-1111"}, smi: smiTwo, want: "0000:1b:00.0"},
		{name: "UUIDs wanted and nvidia-smi broken", files: merge(nvidia(1), map[string]string{
			"proc/driver/nvidia/gpus/0000:1B:00.0/information": "GPU UUID: GPU-????????\nDevice Minor: 0\n",
		}), env: env{"CUDA_VISIBLE_DEVICES": "GPU-1111"}, smi: "error", err: "which only nvidia-smi knows"},
		{name: "no /proc", files: map[string]string{"dev/nvidia0": "", "dev/nvidia1": ""}, smi: smiTwo, want: "0000:1a:00.0 0000:1b:00.0"},
		{name: "no /proc, no nvidia-smi", files: map[string]string{"dev/nvidia0": "", "dev/nvidia1": ""}, smi: "missing", want: "? ?"},
		{name: "no /proc, no nvidia-smi, list", files: map[string]string{"dev/nvidia0": "", "dev/nvidia1": ""}, smi: "missing", env: env{"CUDA_VISIBLE_DEVICES": "1"}, want: "?"},
		{name: "WSL", files: map[string]string{"dev/dxg": ""}, smi: smiTwo, want: "0000:1a:00.0 0000:1b:00.0"},
		{name: "WSL without NVIDIA", files: map[string]string{"dev/dxg": ""}, smi: "missing"},
		{name: "WSL, broken driver", files: map[string]string{"dev/dxg": ""}, smi: "error", err: "nvidia-smi: exit status 9"},
		{name: "nvidia-smi talks nonsense", files: map[string]string{"dev/dxg": ""}, smi: smiHelp},

		{name: "amd", files: amd(3), want: "0000:20:01.0 0000:21:01.0 0000:22:01.0"},
		{name: "amd in order of numbers", files: amd(12), env: env{"HIP_VISIBLE_DEVICES": "1,10"}, want: "0000:21:01.0 0000:2a:01.0"},
		{name: "amd in a container", files: without(amd(3), "dev/dri/renderD128"), want: "0000:21:01.0 0000:22:01.0"},
		{name: "amd, CUDA's list", files: amd(3), env: env{"CUDA_VISIBLE_DEVICES": "2"}, want: "0000:22:01.0"},
		{name: "amd, HIP before CUDA", files: amd(3), env: env{"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, want: "0000:21:01.0"},
		{name: "amd, ROCR", files: amd(3), env: env{"ROCR_VISIBLE_DEVICES": "2,1", "CUDA_VISIBLE_DEVICES": "0"}, want: "0000:22:01.0 0000:21:01.0"},
		{name: "amd, HIP of ROCR", files: amd(3), env: env{"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, want: "0000:21:01.0"},
		{name: "amd, HIP exceeds ROCR", files: amd(3), env: env{"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0,1"}, err: "contains more devices than ROCR_VISIBLE_DEVICES"},
		{name: "amd by UUID", files: amd(3), env: env{"ROCR_VISIBLE_DEVICES": "GPU-000000000000abc1"}, want: "0000:21:01.0"},

		{name: "intel", files: intel("0000:3a:00.0", "0000:29:00.0"), want: "0000:29:00.0 0000:3a:00.0"},
		{name: "intel masked", files: intel("0000:3a:00.0", "0000:29:00.0", "0000:4b:00.0"), env: env{"ZE_AFFINITY_MASK": "2.0,0,2.1,7"}, want: "0000:4b:00.0 0000:29:00.0"},
		{name: "intel, empty mask", files: intel("0000:3a:00.0"), env: env{"ZE_AFFINITY_MASK": ""}, want: "0000:3a:00.0"},
		{name: "intel in a container", files: without(intel("0000:3a:00.0", "0000:29:00.0"), "dev/dri/renderD140"), want: "0000:29:00.0"},
		{name: "another vendor's", files: merge(intel("0000:3a:00.0"), map[string]string{"sys/class/drm/renderD140/device/vendor": "0x1a03\n"})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := devices.System{Root: tree(tt.files), Lookup: lookup(tt.env), SMI: func(args ...string) ([]byte, error) {
				switch tt.smi {
				case "":
					t.Error("nvidia-smi was asked")
				case "missing":
					return nil, fs.ErrNotExist
				case "error":
					return nil, errors.New("exit status 9")
				}
				return []byte(tt.smi), nil
			}}
			list, err := s.Accelerators()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			var got []string
			for _, d := range list {
				if d.PCI == "" {
					d.PCI = "?"
				}
				got = append(got, d.PCI)
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func TestCount(t *testing.T) {
	tests := []struct {
		name           string
		files          map[string]string
		gpu, xpu, auto int
	}{
		{"nothing", nil, 0, 0, 0},
		{"nvidia", nvidia(4), 4, 0, 4},
		{"amd", amd(2), 2, 0, 2},
		{"intel cards", intel("0000:29:00.0", "0000:3a:00.0"), 0, 2, 2},
		{"a processor's graphics", intel("0000:00:02.0"), 0, 1, 0},
		{"both", merge(nvidia(2), intel("0000:00:02.0")), 2, 1, 2},
	}
	for _, tt := range tests {
		s := devices.System{Root: tree(tt.files), Lookup: lookup(nil)}
		for word, want := range map[string]int{"gpu": tt.gpu, "xpu": tt.xpu, "auto": tt.auto} {
			if got, err := s.Count(word); got != want || err != nil {
				t.Errorf("%s: Count(%q) = %d, %v; want %d", tt.name, word, got, err, want)
			}
		}
	}
	if _, err := (devices.System{}).Count("tpu"); err == nil {
		t.Error("tpu was counted")
	}
}

// visible lists are tried on four devices.
var four = []devices.Device{{UUID: "GPU-aaaa-1"}, {UUID: "GPU-aabb-2"}, {UUID: "GPU-cccc-3"}, {UUID: "GPU-dddd-4"}}

var lists = []string{
	"", "0", "3,1", "0,1,2,3", "0,9,1", "9", "-1", "0,-1,1", "0,0", "1,2,1", "1gpu2,2ampere", " 0 , 1 ", "+1", "0,,1", ",0",
	"a", "0,a,1", "0x1", "1.5", "00,01", "0,00", "99999999999999999999999", "GPU-aaaa-1", "GPU-aaaa", "GPU-aa", "GPU-c,GPU-a",
	"GPU-d,GPU-c", "GPU-c,GPU-cccc", "GPU-c,GPU-c", "GPU-c,0", "GPU-c, GPU-d", "GPU-", "GPU-x,GPU-c", "gpu-c", "0,GPU-c", "GPU-c,,GPU-d",
}

func ordinals(list string) []int {
	got := []int{}
	for _, d := range devices.Visible(four, list) {
		got = append(got, slices.Index(four, d))
	}
	return got
}

func TestVisible(t *testing.T) {
	for list, want := range map[string][]int{
		"3,1": {3, 1}, "0,9,1": {0}, "1gpu2,2ampere": {1, 2}, "0,0": {}, "": {}, "GPU-d,GPU-c": {3, 2}, "GPU-aa": {}, "GPU-c,GPU-c": {},
	} {
		if got := ordinals(list); !slices.Equal(got, want) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: %v, want %v", list, got, want)
		}
	}
}

// torch counts the same, told the same UUIDs.
func TestVisibleAsTorch(t *testing.T) {
	python := pypeer.Python(t)
	input, err := json.Marshal(lists)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", `
import json, os, sys
import torch.cuda as c
c._raw_device_count_nvml = lambda: 4
c._raw_device_uuid_nvml = lambda: ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3", "GPU-dddd-4"]
counts = []
for os.environ["CUDA_VISIBLE_DEVICES"] in json.load(sys.stdin):
    counts.append(c._device_count_nvml())
print(json.dumps(counts))`)
	cmd.Stdin = strings.NewReader(string(input))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var counts []int
	if err := json.Unmarshal(out, &counts); err != nil {
		t.Fatal(err)
	}
	got := make([]int, len(lists))
	for i, list := range lists {
		got[i] = len(ordinals(list))
	}
	if diff := cmp.Diff(counts, got); diff != "" {
		t.Errorf("counts for %q differ (-torch +muster):\n%s", lists, diff)
	}
}

func FuzzVisible(f *testing.F) {
	for _, list := range lists {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got := ordinals(list)
		if slices.Contains(got, -1) || len(got) > len(four) {
			t.Errorf("%q chose %v", list, got)
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != len(ordinals(list)) {
			t.Errorf("%q chose a device twice", list)
		}
	})
}

func TestAllowedCPUs(t *testing.T) {
	cpus, err := devices.AllowedCPUs()
	if err != nil || len(cpus) == 0 || !slices.IsSorted(cpus) {
		t.Fatalf("AllowedCPUs() = %v, %v", cpus, err)
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		t.Skip("needs taskset")
	}
	if os.Getenv("TEST_ONE_CPU") != "" {
		if len(cpus) != 1 {
			t.Errorf("%v allowed, want one", cpus)
		}
		return
	}
	cmd := exec.Command(taskset, "-c", fmt.Sprint(cpus[0]), os.Args[0], "-test.run=^TestAllowedCPUs$")
	cmd.Env = append(os.Environ(), "TEST_ONE_CPU=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on one CPU: %v\n%s", err, out)
	}
}
