package runline

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/files/safeopen"
	"github.com/muster-run/muster/internal/job/scheduler"
	"github.com/muster-run/muster/launch"
)

// A schedule is what a scheduler says of a job, where nobody else does.
type schedule struct {
	scheduler string // "Slurm"
	taken     []setting
}

// String says in one line what was taken from where.
func (s *schedule) String() string {
	var parts []string
	for _, t := range s.taken {
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", t.name, t.value, t.from))
	}
	return s.scheduler + " says " + strings.Join(parts, ", ")
}

// meeting are the options with which somebody says himself how the hosts meet. With
// any of them the scheduler decides nothing.
var meeting = []string{"nnodes", "rdzv-backend", "rdzv-endpoint", "node-rank", "master-addr", "master-port"}

// fromScheduler takes from the scheduler that started this process what neither the
// command line nor a PET_ variable says. It warns of what contradicts the scheduler, whose
// word counts for less: there may be other hosts, and workers that share a GPU.
func (r *reader) fromScheduler(cfg *launch.Config) {
	if cfg.Rendezvous.Standalone {
		return
	}
	said := slices.ContainsFunc(meeting, r.isGiven)
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err == nil {
		terminal.Close()
	}
	job, err := scheduler.Detect(scheduler.Input{Lookup: r.lookup, ReadFile: readHostFile, Hostname: os.Hostname,
		Terminal: err == nil})
	if err != nil && !said {
		r.errs = append(r.errs, err)
	}
	if job == nil || err != nil {
		return
	}
	if r.isGiven("nnodes") && cfg.MinNodes > job.Nodes.Value {
		r.warn("--nnodes wants %d hosts, %s has started %d; waiting for the others",
			cfg.MinNodes, job.Scheduler, job.Nodes.Value)
	}
	if r.isGiven("nproc-per-node") && job.GPUs.Value > 0 && cfg.NprocPerNode > job.GPUs.Value {
		r.warn("--nproc-per-node wants %d workers, %s has given this host %d GPUs",
			cfg.NprocPerNode, job.Scheduler, job.GPUs.Value)
	}
	if !said {
		r.schedule = &schedule{scheduler: job.Scheduler}
		r.take(cfg, job)
	}
}

// take fills in what the job says, and notes it in the schedule.
func (r *reader) take(cfg *launch.Config, job *scheduler.Job) {
	note := func(option, value, from string) {
		r.schedule.taken = append(r.schedule.taken, setting{option, value, from})
	}
	nodes, meet := job.Nodes.Value, &cfg.Rendezvous
	cfg.MinNodes, cfg.MaxNodes = nodes, nodes
	note("nnodes", strconv.Itoa(nodes), job.Nodes.From)
	if cfg.RunID == "" {
		cfg.RunID = job.RunID.Value
		note("rdzv-id", cfg.RunID, job.RunID.From)
	}
	if nodes > 1 {
		if meet.Conf["is_host"] == "" {
			// Rather than to find out by resolving names. It is not a rank: those are
			// assigned when the hosts meet.
			meet.Conf["is_host"] = strconv.FormatBool(job.NodeRank.Value == 0)
			note("is_host", meet.Conf["is_host"], job.NodeRank.From)
		}
		meet.Backend = "c10d"
		meet.Endpoint = net.JoinHostPort(strings.Trim(job.Host.Value, "[]"), strconv.Itoa(job.Port.Value))
		note("rdzv-endpoint", meet.Endpoint, job.Host.From+", port from "+job.Port.From)
		if job.Apart {
			// How long the host where they meet may take to come up.
			meet.Conf["read_timeout"] = cmp.Or(meet.Conf["read_timeout"], meet.Conf["join_timeout"], "600")
		}
	}
	if !r.isGiven("preemption-signals") {
		cfg.PreemptionSignals = []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
		note("preemption-signals", "SIGTERM,SIGUSR1", job.Scheduler+" stops jobs, not hosts")
	}
	if !r.isGiven("nproc-per-node") && job.GPUs.Value > 0 {
		cfg.NprocPerNode = job.GPUs.Value
		note("nproc-per-node", strconv.Itoa(cfg.NprocPerNode), job.GPUs.From)
	}
}

// maxHostFile bounds a file that a scheduler's variable or --env-file names, bytes.
const maxHostFile = 4 << 20

// readHostFile reads such a file.
func readHostFile(path string) ([]byte, error) {
	content, err := safeopen.ReadAtMost(path, maxHostFile+1)
	if len(content) > maxHostFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxHostFile)
	}
	return content, err
}
