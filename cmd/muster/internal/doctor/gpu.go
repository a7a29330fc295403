package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/devices"
	"github.com/muster-run/muster/internal/text"
)

// countGPUs counts the devices that the job may use.
func (d *doctor) countGPUs() (int, error) {
	return d.devices().Count("gpu")
}

func (d *doctor) devices() devices.System {
	return devices.System{Root: d.System.Root, Lookup: d.System.Lookup}
}

// fields are what nvidia-smi is asked, all that a driver of 2021 knows.
var fields = []string{"index", "name", "driver_version", "persistence_mode", "compute_mode",
	"ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total",
	"remapped_rows.pending", "remapped_rows.failure", "retired_pages.pending",
	"memory.used", "memory.total", "temperature.gpu", "pci.bus_id"}

// A gpu is one line of nvidia-smi's answer, by the names of its fields.
type gpu map[string]string

// number returns a field's number; false for "[N/A]" and the like.
func (g gpu) number(field string) (int64, bool) {
	n, err := strconv.ParseInt(g[field], 10, 64)
	return n, err == nil
}

// parseSMI reads the answer of nvidia-smi --format=csv,noheader,nounits.
func parseSMI(out []byte, fields []string) (list []gpu) {
	for line := range strings.Lines(string(out)) {
		values := strings.Split(strings.TrimSpace(line), ",")
		if len(values) != len(fields) {
			continue
		}
		g := gpu{}
		for i, value := range values {
			g[fields[i]] = strings.TrimSpace(value)
		}
		list = append(list, g)
	}
	return list
}

// checkGPUs counts the GPUs and looks at their health.
func (d *doctor) checkGPUs(ctx context.Context) []Line {
	count, err := d.countGPUs()
	if err != nil {
		return []Line{failure(err.Error(), "run nvidia-smi; often the driver's module is not loaded or does not match its library")}
	}
	out, complaint, err := d.System.Run(ctx, "nvidia-smi", "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	asked := fields
	if err != nil && ctx.Err() == nil && strings.Contains(string(out)+string(complaint), "not a valid field") {
		asked = []string{"index", "name", "driver_version"}
		out, complaint, err = d.System.Run(ctx, "nvidia-smi", "--query-gpu="+strings.Join(asked, ","), "--format=csv,noheader,nounits")
	}
	lines := d.checkWorkers(count)
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		if count == 0 {
			return append(lines, ok("no GPUs"))
		}
		return append(lines, ok("%s; nvidia-smi is not installed, so their health is not known", text.Count(count, "GPU")))
	case ctx.Err() != nil:
		return append(lines, failure("nvidia-smi does not answer: the driver hangs", "see dmesg for NVRM: Xid; reboot the host"))
	case err != nil:
		why := strings.Trim(lastLines(append(out, complaint...), 2), " ")
		return append(lines, failure(fmt.Sprintf("nvidia-smi: %v: %s", err, why), "load the driver (modprobe nvidia), or install the one that matches its library; a GPU that is lost needs a reboot"))
	}
	list := parseSMI(out, asked)
	if len(list) == 0 {
		return append(lines, ok("no GPUs"))
	}
	lines = append(lines, judgeGPUs(list)...)
	if log, err := d.System.KernelLog(); err == nil {
		lines = append(lines, judgeXids(log)...)
	}
	return lines
}

// checkWorkers compares the number of workers with that of the devices.
func (d *doctor) checkWorkers(count int) []Line {
	if d.WorkersErr != nil {
		return []Line{failure(fmt.Sprintf("--nproc-per-node=%s: %v", d.WorkersWord, d.WorkersErr), "look at the other lines about GPUs, or give a number")}
	}
	if count > 0 && d.Workers > count {
		return []Line{warning(fmt.Sprintf("%s share %s: NCCL refuses two ranks on one device", text.Count(d.Workers, "worker"), text.Count(count, "GPU")), "--nproc-per-node=gpu").as("workers")}
	}
	return nil
}

const (
	hotGPU     = 85   // degrees Celsius, where boards begin to slow down
	usedMemory = 1024 // MiB, more than a driver alone needs
)

// judgeGPUs says what is wrong with each.
func judgeGPUs(list []gpu) []Line {
	var lines []Line
	names := map[string]int{}
	var order []string
	drivers := map[string]bool{}
	lazy := 0
	for _, g := range list {
		if names[g["name"]]++; names[g["name"]] == 1 {
			order = append(order, g["name"])
		}
		drivers[g["driver_version"]] = true
		if g["persistence_mode"] == "Disabled" {
			lazy++
		}
		lines = append(lines, judgeGPU(g)...)
	}
	var kinds []string
	for _, name := range order {
		kinds = append(kinds, fmt.Sprintf("%d x %s", names[name], name))
	}
	lines = slices.Insert(lines, 0, ok("%s, driver %s", strings.Join(kinds, ", "), list[0]["driver_version"]))
	if len(order) > 1 {
		lines = append(lines, warning("the GPUs of this host differ", "choose equal ones with CUDA_VISIBLE_DEVICES: the slowest sets the pace"))
	}
	if lazy > 0 {
		lines = append(lines, warning(fmt.Sprintf("persistence mode is off on %s: each start of a worker loads the driver anew, seconds each", text.Count(lazy, "GPU")), "nvidia-smi -pm 1, or nvidia-persistenced"))
	}
	return lines
}

func judgeGPU(g gpu) (lines []Line) {
	at := "GPU " + g["index"]
	if n, known := g.number("ecc.errors.uncorrected.volatile.total"); known && n > 0 {
		lines = append(lines, failure(fmt.Sprintf("%s: %s of memory (ECC) since the driver was loaded", at, text.Count(int(n), "uncorrected error")), "take the host out of the job, reset the GPU (nvidia-smi -r -i "+g["index"]+"); replace it if they come back"))
	}
	if n, known := g.number("ecc.errors.corrected.volatile.total"); known && n > 1000 {
		lines = append(lines, warning(fmt.Sprintf("%s: %s of memory (ECC) since the driver was loaded", at, text.Count(int(n), "corrected error")), "watch it: many of them come before uncorrected ones"))
	}
	if g["remapped_rows.failure"] == "Yes" || g["remapped_rows.failure"] == "1" {
		lines = append(lines, failure(at+": a row of its memory could not be remapped", "replace the GPU"))
	}
	for _, field := range []string{"remapped_rows.pending", "retired_pages.pending"} {
		if g[field] == "Yes" || g[field] == "1" {
			lines = append(lines, warning(at+": damaged memory waits to be taken out of use", "reset the GPU (nvidia-smi -r -i "+g["index"]+") or reboot"))
		}
	}
	if used, known := g.number("memory.used"); known && used > usedMemory {
		lines = append(lines, warning(fmt.Sprintf("%s: %d of %s MiB are in use: something else runs on it", at, used, g["memory.total"]), "nvidia-smi shows the processes; end what an earlier job has left"))
	}
	if heat, known := g.number("temperature.gpu"); known && heat >= hotGPU {
		lines = append(lines, warning(fmt.Sprintf("%s: %d C", at, heat), "look at its cooling: it slows down, and all others wait for it"))
	}
	if mode := g["compute_mode"]; mode == "Prohibited" {
		lines = append(lines, failure(at+": its compute mode is Prohibited", "nvidia-smi -c DEFAULT -i "+g["index"]))
	}
	return lines
}

// grave are the Xid errors after which a GPU is not to be trusted until it was reset.
// Source: NVIDIA's catalogue of Xid errors.
var grave = map[int]string{
	48: "uncorrected memory error", 62: "internal micro-controller halt", 63: "memory row remapped", 64: "memory row remapping failed",
	74: "NVLink error", 79: "it has fallen off the bus", 92: "many corrected memory errors", 94: "contained memory error",
	95: "uncontained memory error", 119: "its firmware (GSP) does not answer", 120: "error of its firmware (GSP)", 140: "unrecovered memory error",
}

// judgeXids looks through the kernel's messages: "NVRM: Xid (PCI:0000:3b:00): 79, …".
func judgeXids(log []byte) []Line {
	type event struct {
		at   string
		code int
	}
	count := map[event]int{}
	var order []event
	for line := range strings.Lines(string(log)) {
		_, rest, found := strings.Cut(line, "NVRM: Xid (PCI:")
		at, rest, found2 := strings.Cut(rest, "): ")
		if !found || !found2 {
			continue
		}
		digits := rest
		if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			digits = rest[:i]
		}
		code, err := strconv.Atoi(digits)
		if err != nil {
			continue
		}
		e := event{text.Clip(at, 40), code}
		if count[e]++; count[e] == 1 {
			order = append(order, e)
		}
	}
	var lines []Line
	for _, e := range order {
		times := ""
		if count[e] > 1 {
			times = fmt.Sprintf(", %d times", count[e])
		}
		if what := grave[e.code]; what != "" {
			lines = append(lines, failure(fmt.Sprintf("the kernel reports Xid %d (%s) of the GPU at %s%s", e.code, what, e.at, times), "take the host out of the job; reset the GPU or reboot"))
		} else {
			lines = append(lines, warning(fmt.Sprintf("the kernel reports Xid %d of the GPU at %s%s", e.code, e.at, times), "13, 31 and 43 come from programs; for others see NVIDIA's catalogue of Xid errors"))
		}
	}
	const most = 8
	if len(lines) > most {
		lines = append(lines[:most], warning(fmt.Sprintf("and %d more kinds of Xid errors", len(lines)-most), "dmesg | grep Xid"))
	}
	return lines
}
