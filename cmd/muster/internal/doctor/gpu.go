package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/devices"
)

// countGPUs counts the devices that the job may use.
func (d *doctor) countGPUs() (int, error) {
	return devices.System{Root: d.System.Root, Lookup: d.System.Lookup}.Count("gpu")
}

// fields are what nvidia-smi is asked, all that a driver of 2021 knows; an older one knows
// the first three.
var fields = []string{"index", "name", "driver_version", "compute_mode",
	"ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total",
	"remapped_rows.pending", "remapped_rows.failure", "retired_pages.pending",
	"memory.used", "memory.total", "temperature.gpu", "pci.bus_id"}

// checkGPUs counts the GPUs and looks at their health.
func (d *doctor) checkGPUs(ctx context.Context) []Line {
	count, err := d.countGPUs()
	if err != nil {
		return []Line{failure(err.Error(),
			"run nvidia-smi; often the driver's module is not loaded or does not match its library")}
	}
	var out, complaint []byte
	var asked []string
	for _, asked = range [][]string{fields, fields[:3]} {
		out, complaint, err = d.System.Run(ctx, "nvidia-smi",
			"--query-gpu="+strings.Join(asked, ","), "--format=csv,noheader,nounits")
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out)+string(complaint), "not a valid field") {
			break
		}
	}
	lines := d.checkWorkers(count)
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		if count == 0 {
			return append(lines, ok("no GPUs"))
		}
		return append(lines, ok("%s; nvidia-smi is not installed, so their health is not known", text.Count(count, "GPU")))
	case ctx.Err() != nil:
		return append(lines, failure("nvidia-smi does not answer: the driver hangs",
			"see dmesg for NVRM: Xid; reboot the host"))
	case err != nil:
		why := strings.Trim(lastLines(append(out, complaint...), 2), " ")
		return append(lines, failure(fmt.Sprintf("nvidia-smi: %v: %s", err, why),
			"load the driver (modprobe nvidia), or install the one that matches its library; a GPU that is lost needs a reboot"))
	}
	list := devices.ParseSMI(out, asked)
	if len(list) == 0 {
		return append(lines, ok("no GPUs"))
	}
	return slices.Concat(lines, judgeGPUs(list), judgeXids(d.System.KernelLog))
}

// checkWorkers compares the number of workers with that of the devices.
func (d *doctor) checkWorkers(count int) []Line {
	if d.Workers.Err != nil {
		return []Line{failure(fmt.Sprintf("--nproc-per-node=%s: %v", d.Workers.Word, d.Workers.Err),
			"look at the other lines about GPUs, or give a number")}
	}
	if count > 0 && d.Workers.Count > count {
		return []Line{warning(fmt.Sprintf("%s share %s: NCCL refuses two ranks on one device",
			text.Count(d.Workers.Count, "worker"), text.Count(count, "GPU")), "--nproc-per-node=gpu").as("workers")}
	}
	return nil
}

const (
	hotGPU     = 85   // degrees Celsius, where boards begin to slow down
	usedMemory = 1024 // MiB, more than a driver alone needs
)

// judgeGPUs says what is wrong with each.
func judgeGPUs(list []devices.GPU) []Line {
	var kinds, order []string
	names := map[string]int{}
	lines := []Line{{}}
	for _, g := range list {
		if names[g["name"]]++; names[g["name"]] == 1 {
			order = append(order, g["name"])
		}
		lines = append(lines, judgeGPU(g)...)
	}
	for _, name := range order {
		kinds = append(kinds, fmt.Sprintf("%d x %s", names[name], name))
	}
	lines[0] = ok("%s, driver %s", strings.Join(kinds, ", "), list[0]["driver_version"])
	return lines
}

func judgeGPU(g devices.GPU) (lines []Line) {
	index := g["index"]
	found := func(is bool, of func(text, advice string) Line, text, advice string) {
		if is {
			lines = append(lines, of("GPU "+index+text, advice))
		}
	}
	errors := g.Number("ecc.errors.uncorrected.volatile.total")
	found(errors > 0, failure, fmt.Sprintf(": %s of memory (ECC) since the driver was loaded",
		text.Count(errors, "uncorrected error")),
		"take the host out of the job, reset the GPU (nvidia-smi -r -i "+index+"); replace it if they come back")
	errors = g.Number("ecc.errors.corrected.volatile.total")
	found(errors > 1000, warning, fmt.Sprintf(": %s of memory (ECC) since the driver was loaded",
		text.Count(errors, "corrected error")), "watch it: many of them come before uncorrected ones")
	found(g.Is("remapped_rows.failure"), failure, ": a row of its memory could not be remapped", "replace the GPU")
	for _, field := range []string{"remapped_rows.pending", "retired_pages.pending"} {
		found(g.Is(field), warning, ": damaged memory waits to be taken out of use",
			"reset the GPU (nvidia-smi -r -i "+index+") or reboot")
	}
	used, heat := g.Number("memory.used"), g.Number("temperature.gpu")
	found(used > usedMemory, warning, fmt.Sprintf(": %d of %s MiB are in use: something else runs on it",
		used, g["memory.total"]), "nvidia-smi shows the processes; end what an earlier job has left")
	found(heat >= hotGPU, warning, fmt.Sprintf(": %d C", heat),
		"look at its cooling: it slows down, and all others wait for it")
	found(g["compute_mode"] == "Prohibited", failure, ": its compute mode is Prohibited",
		"nvidia-smi -c DEFAULT -i "+index)
	return lines
}

// judgeXids looks through the kernel's messages: "NVRM: Xid (PCI:0000:3b:00): 79, …".
func judgeXids(read func(each func(record string))) []Line {
	var order []devices.Xid
	read(func(record string) {
		if x, ok := devices.ParseXid(record); ok {
			e := devices.Xid{PCI: x.PCI, Code: x.Code}
			if !slices.Contains(order, e) {
				order = append(order, e)
			}
		}
	})
	var lines []Line
	for _, e := range order {
		if what := e.Grave(); what != "" {
			lines = append(lines, failure(fmt.Sprintf("the kernel reports Xid %d (%s) of the GPU at %s",
				e.Code, what, e.PCI), "take the host out of the job; reset the GPU or reboot"))
		} else {
			lines = append(lines, warning(fmt.Sprintf("the kernel reports Xid %d of the GPU at %s", e.Code, e.PCI),
				"13, 31 and 43 come from programs; for others see NVIDIA's catalogue of Xid errors"))
		}
	}
	return limited("", lines, "more kinds of Xid errors", "dmesg | grep Xid")
}
