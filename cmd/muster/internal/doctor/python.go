package doctor

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/files/execpath"
	"github.com/muster-run/muster/internal/format/text"
)

// importLimit bounds `import torch`, which takes seconds from a cold disk and minutes
// from a network file system that is overloaded.
const importLimit = 60 * time.Second

// slowImport is worth a warning: every worker of every host does it at once.
const slowImport = 20 * time.Second

// probe is what the interpreter is asked. It prints one line of JSON, and after it
// another one with what torch says, if that can be imported; not from the current directory.
//
//go:embed probe.py
var probe string

// mark begins the lines of the probe among what torch may print.
const mark = "MUSTER "

// A pythonAnswer is what the probe prints.
type pythonAnswer struct {
	Version    string `json:"version"`
	Executable string `json:"executable"`
	Files      int64  `json:"files"`   // soft limit that workers have; -1 for none
	Adopted    string `json:"adopted"` // the muster that its programs start for PyTorch's launcher

	Torch       string  `json:"torch"`
	Seconds     float64 `json:"seconds"`
	CUDA        string  `json:"cuda"`
	HIP         string  `json:"hip"`
	Distributed bool    `json:"distributed"`
	Gloo        bool    `json:"gloo"`
	NCCL        bool    `json:"nccl"`
	MPI         bool    `json:"mpi"`
	Devices     int     `json:"devices"`
}

// parseProbe reads what the probe has printed, as far as it came.
func parseProbe(out []byte) (a pythonAnswer) {
	a.Files = -1
	for line := range strings.Lines(string(out)) {
		if text, found := strings.CutPrefix(line, mark); found {
			_ = json.Unmarshal([]byte(text), &a) // what it does not say stays unsaid
		}
	}
	return a
}

// checkPython starts the workers' interpreter and imports torch.
func (d *doctor) checkPython(ctx context.Context) []Line {
	switch {
	case d.Python.Err != nil:
		return []Line{failure(d.Python.Err.Error(), "activate the environment that has torch, or set PYTHON_EXEC")}
	case d.Python.Path == "":
		return []Line{ok("not needed")}
	}
	ctx, cancel := context.WithTimeout(ctx, importLimit)
	defer cancel()
	start := time.Now()
	out, complaint, err := d.System.Run(ctx, d.Python.Path, "-c", probe)
	a := parseProbe(out)
	if a.Version == "" {
		why := "it does not run Python"
		if text := lastLines(complaint, 2); text != "" {
			why = text
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			why = "it did not start within " + round(time.Since(start))
		case err != nil:
			why = err.Error() + ": " + why
		}
		return []Line{failure(fmt.Sprintf("%s: %s", d.Python.Path, why),
			"set PYTHON_EXEC to another interpreter, or repair this one")}
	}
	where := d.Python.Path
	if a.Executable != "" && a.Executable != d.Python.Path {
		where += " (" + a.Executable + ")"
	}
	lines := []Line{ok("%s at %s", a.Version, where)}
	if a.Files >= 0 && a.Files < fewFiles/4 {
		lines = append(lines, warning(fmt.Sprintf("a worker may have %d files open (ulimit -n)", a.Files),
			"ulimit -n 65536 before muster").as("limits"))
	}
	lines = append(lines, d.judgeTorch(ctx, a, complaint, time.Since(start)))
	if a.Torch != "" {
		lines = append(lines, d.judgeDevices(a)...)
		lines = append(lines, d.sayLauncher(a))
	}
	return append(lines, d.findPySpy())
}

func (d *doctor) judgeTorch(ctx context.Context, a pythonAnswer, complaint []byte, took time.Duration) (l Line) {
	const copyIt = "on many hosts copy the environment to a local disk first"
	seconds := time.Duration(a.Seconds * float64(time.Second))
	switch {
	case a.Torch == "":
		why, fix := lastLines(complaint, 1), "pip install torch into this environment, or activate the one that has it"
		switch {
		case ctx.Err() != nil:
			why = "importing it took more than " + round(took)
			fix = "look at the file system that it is on; " + copyIt
		case strings.Contains(why, "ModuleNotFoundError") && strings.Contains(why, "'torch'"):
			why = "it is not installed for " + d.Python.Path
		case why == "":
			why = "the interpreter died while it imported it"
			fix = "run " + d.Python.Path + " -X faulthandler -c 'import torch'"
		}
		l = failure("cannot be imported: "+why, fix)
	case !a.Distributed:
		l = failure("torch "+a.Torch+" was built without torch.distributed", "install a build that has it")
	case seconds > slowImport:
		l = warning(fmt.Sprintf("torch %s took %s to import", a.Torch, round(seconds)), copyIt)
	default:
		built := "for CPUs only"
		if a.CUDA != "" {
			built = "for CUDA " + a.CUDA
		} else if a.HIP != "" {
			built = "for ROCm " + a.HIP
		}
		var backends []string
		for i, has := range []bool{a.Gloo, a.NCCL, a.MPI} {
			if has {
				backends = append(backends, []string{"gloo", "nccl", "mpi"}[i])
			}
		}
		l = ok("%s %s, imported in %s; backends %s", a.Torch, built, round(seconds), strings.Join(backends, ", "))
	}
	return l.as("torch")
}

// sayLauncher says what programs start that start PyTorch's launcher.
func (d *doctor) sayLauncher(a pythonAnswer) Line {
	starts := a.Adopted + " (adopted), but not python -S, subclasses of LocalElasticAgent and start_processes"
	if a.Adopted == "" {
		starts = "PyTorch's launcher; `muster adopt` changes that"
	}
	l := ok("python -m torch.distributed.run, elastic_launch and torchrun of this environment start %s", starts)
	if path, err := execpath.Find("torchrun", d.System.Lookup); err == nil && filepath.Dir(path) != filepath.Dir(a.Executable) {
		l.Text += "; torchrun in PATH is another one, " + path
	}
	return l.as("launcher")
}

// judgeDevices compares the devices that torch sees with those that the machine has.
func (d *doctor) judgeDevices(a pythonAnswer) []Line {
	gpus, err := d.countGPUs()
	if err != nil {
		return nil // checkGPUs says so
	}
	hidden := ""
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} {
		if value, set := d.System.Lookup(name); set {
			hidden += fmt.Sprintf(" (with %s=%.80s)", name, value)
		}
	}
	devices := text.Count(gpus, "GPU")
	var l Line
	switch {
	case gpus > 0 && a.CUDA == "" && a.HIP == "":
		l = warning(fmt.Sprintf("this host has %s, but torch %s was built for CPUs only", devices, a.Torch),
			"install the build for the driver's CUDA or ROCm: https://pytorch.org/get-started/locally")
	case gpus > 0 && a.Devices == 0:
		l = failure(fmt.Sprintf("this host has %s, but torch sees none%s", devices, hidden),
			"run "+d.Python.Path+" -c 'import torch; torch.zeros(1).cuda()' for the reason; often the driver is older than "+
				"torch's CUDA needs")
	case gpus > 0 && a.Devices != gpus:
		l = warning(fmt.Sprintf("torch sees %s of %d%s", text.Count(a.Devices, "GPU"), gpus, hidden), "")
	case a.Devices > 0 && a.CUDA != "" && !a.NCCL:
		l = warning("torch sees GPUs but has no NCCL", "install a build with NCCL, or use gloo")
	case a.Devices > 0:
		l = ok("torch sees %s%s", text.Count(a.Devices, "GPU"), hidden)
	default:
		return nil
	}
	return []Line{l.as("devices")}
}

// PySpy returns the py-spy beside an interpreter or in PATH, "" if there is none.
func PySpy(python string, lookup func(string) (string, bool)) string {
	names := []string{filepath.Join(filepath.Dir(python), "py-spy"), "py-spy"}
	if !strings.Contains(python, "/") {
		names = names[1:]
	}
	for _, name := range names {
		if path, err := execpath.Find(name, lookup); err == nil {
			return path
		}
	}
	return ""
}

// findPySpy reports whether stacks of workers that hang can be had.
func (d *doctor) findPySpy() Line {
	if path := PySpy(d.Python.Path, d.System.Lookup); path != "" {
		return ok("%s shows the stacks of workers that hang", path).as("py-spy")
	}
	return warning("not found beside the interpreter or in PATH: the stacks of workers that hang will be missing",
		"pip install py-spy").as("py-spy")
}
