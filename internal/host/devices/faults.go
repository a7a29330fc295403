package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/format/text"
)

// A GPU is one line of nvidia-smi's answer, by the names of its fields.
type GPU map[string]string

// Number returns a field's number; 0 for "[N/A]" and the like.
func (g GPU) Number(field string) int {
	n, _ := strconv.Atoi(g[field])
	return n
}

// Is reports whether a field says yes.
func (g GPU) Is(field string) bool { return g[field] == "Yes" || g[field] == "1" }

// ParseSMI reads the answer of nvidia-smi --format=csv,noheader,nounits.
func ParseSMI(out []byte, fields []string) (list []GPU) {
	for line := range strings.Lines(string(out)) {
		values := strings.Split(strings.TrimSpace(line), ",")
		if len(values) != len(fields) {
			continue
		}
		g := GPU{}
		for i, value := range values {
			g[fields[i]] = strings.TrimSpace(value)
		}
		list = append(list, g)
	}
	return list
}

// An Xid is an error that NVIDIA's driver has told the kernel's log.
type Xid struct {
	PCI  string // the GPU's address, as the log has it: 0000:3b:00
	Code int
	PID  int    // of the process that used it; 0 where the log does not say
	Said string // the rest of the line
}

// grave are the Xids after which a GPU is not to be trusted until it was reset.
// Source: NVIDIA's catalogue of Xid errors.
var grave = map[int]string{
	48: "uncorrected memory error", 62: "internal micro-controller halt", 63: "memory row remapped",
	64: "memory row remapping failed", 74: "NVLink error", 79: "it has fallen off the bus",
	92: "many corrected memory errors", 94: "contained memory error", 95: "uncontained memory error",
	119: "its firmware (GSP) does not answer", 120: "error of its firmware (GSP)", 140: "unrecovered memory error",
}

// Grave says what an Xid means after which the GPU is not to be trusted until it was reset; "" for
// the others, which may come from programs.
func (x Xid) Grave() string { return grave[x.Code] }

// ParseXid reads a line of the kernel's log: "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …".
func ParseXid(line string) (x Xid, ok bool) {
	_, rest, found := strings.Cut(line, "NVRM: Xid (PCI:")
	at, rest, found2 := strings.Cut(rest, "): ")
	if !found || !found2 {
		return x, false
	}
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	code, err := strconv.Atoi(rest[:digits])
	x = Xid{PCI: text.Clip(at, 40), Code: code}
	for part := range strings.SplitSeq(rest[digits:], ",") {
		switch name, value, named := strings.Cut(strings.TrimSpace(part), "="); {
		case named && name == "pid":
			x.PID, _ = strconv.Atoi(strings.Trim(value, "'"))
		case named && name == "name", part == "":
		case x.Said == "":
			x.Said = text.Line(strings.TrimSpace(part), 100)
		}
	}
	return x, err == nil
}

// faultFields are what Faults asks nvidia-smi.
var faultFields = []string{"index", "pci.bus_id", "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending",
	"remapped_rows.failure", "retired_pages.pending"}

// Faults asks nvidia-smi, until ctx is done, what is wrong with this host's GPUs; index has their
// numbers by their addresses as Xids have them. Where it does not answer, or not to that, nothing
// is known.
func Faults(ctx context.Context) (faults []string, index map[string]string) {
	out, err := runSMI(ctx, "--query-gpu="+strings.Join(faultFields, ","), "--format=csv,noheader,nounits")
	index = map[string]string{}
	if err != nil {
		if said := err.Error(); strings.Contains(said, "is lost") || strings.Contains(said, "device handle for GPU") {
			faults = append(faults, "nvidia-smi: "+text.Line(said, 200))
		}
		return faults, index
	}
	for _, g := range ParseSMI(out, faultFields) {
		at := strings.ToLower(strings.TrimSuffix(g["pci.bus_id"], ".0"))
		index[at[max(0, len(at)-len("0000:3b:00")):]] = g["index"]
		add := func(is bool, what string) {
			if is {
				faults = append(faults, "GPU "+g["index"]+" "+what)
			}
		}
		n := g.Number("ecc.errors.uncorrected.volatile.total")
		add(n > 0, fmt.Sprintf("has had %s of memory (ECC) since the driver was loaded", text.Count(n, "uncorrected error")))
		add(g.Is("remapped_rows.failure"), "has a row of memory that could not be remapped")
		add(g.Is("remapped_rows.pending") || g.Is("retired_pages.pending"), "has damaged memory that waits to be taken "+
			"out of use")
	}
	return faults, index
}

// Details is all that nvidia-smi says of this host's GPUs, until ctx is done; nil where it says
// nothing, or why it does not.
func Details(ctx context.Context) []byte {
	out, err := runSMI(ctx, "-q")
	if ctx.Err() != nil {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		out = []byte("nvidia-smi -q: " + text.Line(err.Error(), 1000) + "\n")
	}
	return out
}

// String says what happened to which GPU; index is that of Faults.
func (x Xid) String(index map[string]string) string {
	gpu := "at " + x.PCI
	if n := index[strings.ToLower(x.PCI)]; n != "" {
		gpu = n
	}
	s := fmt.Sprintf("Xid %d", x.Code)
	if what := x.Grave(); what != "" {
		s += " (" + what + ")"
	} else if x.Said != "" {
		s += " (" + x.Said + ")"
	}
	return s + " of GPU " + gpu
}
