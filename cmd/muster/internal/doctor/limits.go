package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/host/procfs"
)

// Limits of this process below which something is known to break.
const (
	// fewFiles is too few for a worker whose data loaders share tensors by open files.
	fewFiles = 4096
	// fewProcesses per worker: main thread, data loaders, their pin and feeder
	// threads, and one thread of OpenMP for each core.
	fewProcesses = 256
)

// checkLimits looks at the limits of this process, which the workers inherit.
func (d *doctor) checkLimits(context.Context) []Line {
	var lines []Line
	workers := max(d.Workers.Count, 1)
	few := d.System.Limits(workers)
	switch _, hard, err := d.System.RLimit(unix.RLIMIT_NOFILE); {
	case few != nil:
		for text := range strings.SplitSeq(few.Error(), "\n") {
			lines = append(lines, failure(text, "ulimit -n 65536 (or LimitNOFILE= of the service, --ulimit of the "+
				"container, limits.conf), and ulimit -u for processes"))
		}
	case err != nil:
		lines = append(lines, warning("open files: "+err.Error(), ""))
	case hard < fewFiles:
		lines = append(lines, warning(fmt.Sprintf("at most %d files may be open (ulimit -Hn): data loaders that share "+
			"tensors run out of that", hard),
			"raise the limit to 65536 (limits.conf, LimitNOFILE=, --ulimit nofile=65536), or "+
				"torch.multiprocessing.set_sharing_strategy('file_system')"))
	default:
		files := "any number of"
		if hard < math.MaxInt64 {
			files = strconv.FormatUint(hard, 10)
		}
		lines = append(lines, ok("%s files may be open", files))
	}
	if _, hard, err := d.System.RLimit(unix.RLIMIT_NPROC); err == nil && d.System.Geteuid() != 0 &&
		hard < uint64(workers)*fewProcesses {
		lines = append(lines, warning(fmt.Sprintf("the user may have %d processes and threads (ulimit -Hu), which is "+
			"little for %s with data loaders", hard, text.Count(workers, "worker")),
			"raise the limit (limits.conf, TasksMax= of the service, --pids-limit of the container)"))
	}
	if limit, used, dir := d.cgroupLimit("pids"); dir != "" && limit-min(limit, used) < uint64(workers)*fewProcesses {
		lines = append(lines, warning(fmt.Sprintf("the control group may have %d more processes and threads (pids.max is "+
			"%d), which is little for %s with data loaders", limit-min(limit, used), limit, text.Count(workers, "worker")),
			"raise it: TasksMax= of the service, --pids-limit of the container, podPidsLimit of Kubernetes"))
	}
	return append(lines, d.checkMemlock()...)
}

// cgroupLimit returns the narrowest limit of a controller (version 2) on this process:
// NAME.max and NAME.current of its control group or one above it, and which that is; ""
// if there is none.
func (d *doctor) cgroupLimit(controller string) (limit, used uint64, at string) {
	text, _ := fs.ReadFile(d.System.Root, "proc/self/cgroup")
	dir := procfs.Field(text, "0::")
	if dir == "" {
		return 0, 0, ""
	}
	for dir = path.Join("sys/fs/cgroup", dir); strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
		most, known := d.number(dir + "/" + controller + ".max") // or "max"
		now, _ := d.number(dir + "/" + controller + ".current")
		if known && (at == "" || most-min(most, now) < limit-min(limit, used)) {
			limit, used, at = most, now, dir
		}
	}
	return limit, used, at
}

// number reads a file with one number in it.
func (d *doctor) number(name string) (uint64, bool) {
	text, _ := fs.ReadFile(d.System.Root, name)
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// checkMemlock looks at the memory that may be locked, where a device needs it.
func (d *doctor) checkMemlock() []Line {
	adapters, _ := fs.ReadDir(d.System.Root, "sys/class/infiniband")
	if len(adapters) == 0 {
		return nil
	}
	devices := text.Count(len(adapters), "RDMA device")
	_, hard, err := d.System.RLimit(unix.RLIMIT_MEMLOCK)
	if err != nil || hard == math.MaxUint64 {
		return []Line{ok("%s; memory may be locked without limit", devices)}
	}
	return []Line{warning(fmt.Sprintf("%s, but only %s may be locked (ulimit -Hl): NCCL cannot register its memory "+
		"(ibv_reg_mr fails)", devices, text.Size(hard)),
		"ulimit -l unlimited (limits.conf: memlock unlimited; LimitMEMLOCK=infinity; --ulimit memlock=-1; under Slurm "+
			"PropagateResourceLimitsExcept=MEMLOCK)")}
}

// checkMemory looks at what is left for the job.
func (d *doctor) checkMemory(context.Context) []Line {
	info, err := fs.ReadFile(d.System.Root, "proc/meminfo")
	if err != nil {
		return nil // not Linux
	}
	total, available := uint64(procfs.Kilobytes(info, "MemTotal:")), uint64(procfs.Kilobytes(info, "MemAvailable:"))
	if total == 0 {
		return []Line{warning("/proc/meminfo does not say how much memory there is", "")}
	}
	if limit, used, dir := d.cgroupLimit("memory"); dir != "" && limit < total {
		stat, _ := fs.ReadFile(d.System.Root, dir+"/memory.stat")
		cache, _ := strconv.ParseUint(procfs.Field(stat, "inactive_file"), 10, 64)
		used -= min(used, cache) // given up when needed
		total, available = limit, min(available, limit-min(limit, used))
	}
	if available < total/10 {
		return []Line{warning(fmt.Sprintf("%s of %s of memory are free: something else runs here",
			text.Size(available), text.Size(total)),
			"look for processes of an earlier job (muster dump, top)")}
	}
	return []Line{ok("%s of %s are free", text.Size(available), text.Size(total))}
}

// checkCgroup tries to make a control group, as workers get one.
func (d *doctor) checkCgroup(context.Context) []Line {
	err := d.System.TryCgroup()
	if err == nil {
		return []Line{ok("one can be made for the workers")}
	}
	return []Line{warning(fmt.Sprintf("none can be made for the workers: %v", err),
		"muster then finds what workers leave behind by their environment instead of killing all at once, and cannot "+
			"tell one worker's out-of-memory kill from another's; delegate a control group to it (systemd-run --user "+
			"--scope -p Delegate=yes; a writable /sys/fs/cgroup in the container)")}
}
