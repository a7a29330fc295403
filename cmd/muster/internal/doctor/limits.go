package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/format/text"
)

// fewFiles is too few for a worker whose data loaders share tensors by open files.
const fewFiles = 4096

// checkLimits looks at the limits of this process, which the workers inherit.
func (d *doctor) checkLimits(context.Context) []Line {
	var lines []Line
	few := d.System.Limits(max(d.Workers.Count, 1))
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
	return append(lines, d.checkMemlock()...)
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
