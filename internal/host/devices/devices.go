// Package devices counts the accelerators and CPUs that a job may use on this
// machine: NVIDIA, AMD and Intel GPUs as the kernel shows them, less those that
// CUDA_VISIBLE_DEVICES and its like hide.
//
// torchrun asks the PyTorch it belongs to. A launcher without PyTorch can only
// look at the machine, so the two differ where PyTorch was built for other
// hardware; the command line's --devices overrides what is found here.
package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/host/procfs"
)

// Kind of an accelerator.
type Kind uint8

const (
	NVIDIA Kind = iota
	AMD
	Intel
)

// A Device is one accelerator.
type Device struct {
	Kind Kind
	PCI  string // address as in /sys/bus/pci/devices, "" if not known
	UUID string // "" if not known
}

// A System is a machine to look at.
type System struct {
	Root   fs.FS                                 // the file system
	Lookup func(name string) (string, bool)      // the environment
	SMI    func(query ...string) ([]byte, error) // runs nvidia-smi; nil runs the real one
}

// Accelerators returns the visible devices in the order of their indexes: GPUs
// if there are any, else Intel's. None is not an error.
func (s System) Accelerators() ([]Device, error) {
	gpus, err := s.GPUs()
	if err != nil || len(gpus) > 0 {
		return gpus, err
	}
	return s.XPUs()
}

// Count answers --nproc-per-node's words gpu, xpu and auto; auto without any
// device is 0. A processor's own graphics counts as xpu, but does not make auto
// choose it: a PyTorch that can use it is rare, one that cannot is not.
func (s System) Count(word string) (int, error) {
	switch word {
	case "gpu":
		list, err := s.GPUs()
		return len(list), err
	case "xpu":
		list, err := s.XPUs()
		return len(list), err
	case "auto":
		list, err := s.Accelerators()
		list = slices.DeleteFunc(list, func(d Device) bool { // on the first bus, where no card sits
			return d.Kind == Intel && strings.HasPrefix(d.PCI, "0000:00:")
		})
		return len(list), err
	}
	return 0, fmt.Errorf("no kind of device: %q", word)
}

// GPUs returns the visible NVIDIA devices, or AMD's where there is no NVIDIA
// device at all.
func (s System) GPUs() ([]Device, error) {
	all, err := s.nvidia()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return s.amd()
	}
	list, ok := s.Lookup("CUDA_VISIBLE_DEVICES")
	if !ok {
		return all, nil
	}
	if strings.HasPrefix(list, "MIG-") {
		// CUDA shows a process one slice at most; which card it is part of
		// only the driver knows.
		return []Device{{Kind: NVIDIA}}, nil
	}
	// The kernel shows question marks until a device is first used.
	unknown := func(d Device) bool { return d.UUID == "" || strings.Contains(d.UUID, "?") }
	if strings.HasPrefix(list, "GPU-") && slices.ContainsFunc(all, unknown) {
		if all, err = s.askSMI(); err != nil {
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES=%.80s names UUIDs, which only nvidia-smi knows: %w", list, err)
		}
	}
	return Visible(all, list), nil
}

// nvidia lists all NVIDIA devices in PCI order, which is NVML's. A container
// sees every card under /proc but can open only those with a device node.
func (s System) nvidia() ([]Device, error) {
	entries, _ := fs.ReadDir(s.Root, "proc/driver/nvidia/gpus")
	var list []Device
	for _, entry := range entries {
		d := Device{Kind: NVIDIA, PCI: strings.ToLower(entry.Name())}
		info, _ := fs.ReadFile(s.Root, "proc/driver/nvidia/gpus/"+entry.Name()+"/information")
		d.UUID = procfs.Field(info, "GPU UUID:")
		if minor := procfs.Field(info, "Device Minor:"); minor == "" || s.exists("dev/nvidia"+minor) {
			list = append(list, d)
		}
	}
	if len(list) > 0 {
		slices.SortFunc(list, func(a, b Device) int { return cmp.Compare(a.PCI, b.PCI) })
		return list, nil
	}
	// No /proc, as under WSL or in some sandboxes: a device node is a hint, and
	// only then nvidia-smi is worth its start.
	nodes := 0
	entries, _ = fs.ReadDir(s.Root, "dev")
	for _, entry := range entries {
		minor, ok := strings.CutPrefix(entry.Name(), "nvidia")
		if _, err := strconv.ParseUint(minor, 10, 31); ok && err == nil {
			nodes++
		}
	}
	if nodes == 0 && !s.exists("dev/dxg") {
		return nil, nil
	}
	list, err := s.askSMI()
	if err != nil && nodes > 0 {
		return make([]Device, nodes), nil // Kind's zero value is NVIDIA
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

// askSMI lists devices as nvidia-smi does.
func (s System) askSMI() ([]Device, error) {
	run := s.SMI
	if run == nil {
		run = func(query ...string) ([]byte, error) { return runSMI(context.Background(), query...) }
	}
	out, err := run("--query-gpu=uuid,pci.bus_id", "--format=csv,noheader")
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	var list []Device
	for _, g := range ParseSMI(out, []string{"uuid", "pci.bus_id"}) {
		if !strings.HasPrefix(g["uuid"], "GPU-") {
			continue
		}
		address := strings.ToLower(g["pci.bus_id"])
		if domain, rest, ok := strings.Cut(address, ":"); ok && len(domain) == 8 {
			address = domain[4:] + ":" + rest // nvidia-smi writes 8 digits, sysfs 4
		}
		list = append(list, Device{Kind: NVIDIA, PCI: address, UUID: g["uuid"]})
	}
	return list, nil
}

// amd lists the visible devices of the kernel's compute driver. ROCm applies
// ROCR_VISIBLE_DEVICES first; HIP_VISIBLE_DEVICES, or else
// CUDA_VISIBLE_DEVICES, choose from what that leaves. As in torch the last one
// is not looked at where the first is set.
func (s System) amd() ([]Device, error) {
	const nodes = "sys/class/kfd/kfd/topology/nodes"
	entries, _ := fs.ReadDir(s.Root, nodes)
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return len(a.Name()) - len(b.Name()) }) // 9 before 10
	var list []Device
	for _, entry := range entries {
		data, _ := fs.ReadFile(s.Root, nodes+"/"+entry.Name()+"/properties")
		property := func(name string) uint64 {
			n, _ := strconv.ParseUint(procfs.Field(data, name+" "), 10, 64)
			return n
		}
		if property("simd_count") == 0 {
			continue // a processor, or in a container what another one has
		}
		if minor := property("drm_render_minor"); minor != 0 && !s.exists("dev/dri/renderD"+strconv.FormatUint(minor, 10)) {
			continue
		}
		at := property("location_id") // bus, device, function
		list = append(list, Device{
			Kind: AMD,
			PCI:  fmt.Sprintf("%04x:%02x:%02x.%d", property("domain"), at>>8&0xff, at>>3&0x1f, at&7),
			UUID: fmt.Sprintf("GPU-%016x", property("unique_id")),
		})
	}
	if len(list) == 0 {
		return nil, nil
	}
	rocr, rocrSet := s.Lookup("ROCR_VISIBLE_DEVICES")
	if rocrSet {
		list = Visible(list, rocr)
	}
	if hip, ok := s.Lookup("HIP_VISIBLE_DEVICES"); ok {
		if rocrSet && strings.Count(hip, ",") > strings.Count(rocr, ",") {
			return nil, fmt.Errorf("HIP_VISIBLE_DEVICES=%.80s contains more devices than ROCR_VISIBLE_DEVICES=%.80s, which "+
				"it chooses from", hip, rocr)
		}
		return Visible(list, hip), nil
	}
	if cuda, ok := s.Lookup("CUDA_VISIBLE_DEVICES"); ok && !rocrSet {
		return Visible(list, cuda), nil
	}
	return list, nil
}

// XPUs returns Intel's devices, one per card, less those that ZE_AFFINITY_MASK
// leaves out. (A card's tiles, which the mask can also name, count as the card.)
func (s System) XPUs() ([]Device, error) {
	entries, _ := fs.ReadDir(s.Root, "sys/class/drm")
	var list []Device
	for _, entry := range entries {
		dir := "sys/class/drm/" + entry.Name() + "/device/"
		if !strings.HasPrefix(entry.Name(), "renderD") || !s.exists("dev/dri/"+entry.Name()) {
			continue
		}
		vendor, err := fs.ReadFile(s.Root, dir+"vendor")
		if err != nil || strings.TrimSpace(string(vendor)) != "0x8086" {
			continue
		}
		uevent, _ := fs.ReadFile(s.Root, dir+"uevent")
		list = append(list, Device{Kind: Intel, PCI: procfs.Field(uevent, "PCI_SLOT_NAME=")})
	}
	slices.SortStableFunc(list, func(a, b Device) int { return cmp.Compare(a.PCI, b.PCI) })
	mask, ok := s.Lookup("ZE_AFFINITY_MASK")
	if !ok || mask == "" {
		return list, nil
	}
	var visible []Device
	seen := map[int]bool{}
	for part := range strings.SplitSeq(mask, ",") {
		card, _, _ := strings.Cut(strings.TrimSpace(part), ".")
		if i, err := strconv.Atoi(card); err == nil && i >= 0 && i < len(list) && !seen[i] {
			seen[i] = true
			visible = append(visible, list[i])
		}
	}
	return visible, nil
}

func (s System) exists(name string) bool {
	_, err := fs.Stat(s.Root, name)
	return err == nil
}
