package launch

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/procfs"
	"github.com/muster-run/muster/internal/scheduler"
)

// A Schedule is what FromScheduler has taken from a scheduler's variables.
type Schedule struct {
	Scheduler string // "Slurm"
	Taken     []Taken
}

// A Taken is one setting that a scheduler has made.
type Taken struct {
	Option string // the command line's option for it, "nnodes"
	Value  string
	From   string // variables, or a few words
}

// String says in one line what was taken from where.
func (s *Schedule) String() string {
	var parts []string
	for _, t := range s.Taken {
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", t.Option, t.Value, t.From))
	}
	return s.Scheduler + " says " + strings.Join(parts, ", ")
}

// take notes a setting.
func (s *Schedule) take(option, value, from string) {
	s.Taken = append(s.Taken, Taken{option, value, from})
}

// FromScheduler fills in what the scheduler that started this process says of the
// job, where cfg says nothing of it: number of hosts, rendezvous, run ID, workers.
// It reads the environment of cfg. The Schedule is nil, and cfg as it was, outside
// of schedulers, in a worker of a job, and if cfg has any of MinNodes, MaxNodes,
// RdzvBackend, RdzvEndpoint, NodeRank, MasterAddr, MasterPort and Standalone. RunID,
// NprocPerNode and what RdzvConf says of is_host are kept where they are set.
//
// The error says what is missing, or contradicts itself, or that the scheduler has
// started several processes on one host.
func FromScheduler(cfg Config) (Config, *Schedule, error) {
	if cfg.MinNodes != 0 || cfg.MaxNodes != 0 || cfg.RdzvBackend != "" || cfg.RdzvEndpoint != "" ||
		cfg.NodeRank != 0 || cfg.MasterAddr != "" || cfg.MasterPort != 0 || cfg.Standalone {
		return cfg, nil, nil
	}
	job, err := scheduler.Detect(scheduler.Input{Lookup: cfg.LookupEnv, ReadFile: readHostFile, Hostname: os.Hostname})
	if job == nil || err != nil {
		return cfg, nil, err
	}
	return cfg.schedule(job)
}

// maxHostFile bounds a file that a scheduler's variable names, bytes.
const maxHostFile = 4 << 20

// readHostFile reads a file that a scheduler's variable names.
func readHostFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Size() > maxHostFile:
		return nil, fmt.Errorf("%s has %d bytes; a list of hosts has at most %d", path, info.Size(), maxHostFile)
	}
	return procfs.ReadFile(path)
}

// schedule takes from the job what cfg does not say.
func (cfg Config) schedule(job *scheduler.Job) (Config, *Schedule, error) {
	s := &Schedule{Scheduler: job.Scheduler}
	nodes := job.Nodes.Value
	cfg.MinNodes, cfg.MaxNodes = nodes, nodes
	s.take("nnodes", strconv.Itoa(nodes), job.Nodes.From)
	if cfg.RunID == "" {
		cfg.RunID = job.RunID.Value
		s.take("rdzv-id", cfg.RunID, job.RunID.From)
	}
	if nodes > 1 {
		if _, said := cfg.RdzvConf["is_host"]; !said {
			// Rather than to find out by resolving names. It is no rank: those are
			// assigned when the hosts meet.
			isHost := strconv.FormatBool(job.NodeRank.Value == 0)
			cfg.setDefault("is_host", isHost)
			s.take("is_host", isHost, job.NodeRank.From)
		}
		cfg.RdzvBackend = "c10d"
		cfg.RdzvEndpoint = joinHostPort(job.Host.Value, job.Port.Value)
		s.take("rdzv-endpoint", cfg.RdzvEndpoint, job.Host.From+", port from "+job.Port.From)
		if job.Apart {
			// How long the host where they meet may take to come up.
			cfg.setDefault("read_timeout", cmp.Or(cfg.RdzvConf["join_timeout"], "600"))
		}
	}
	if cfg.PreemptionSignals == nil {
		cfg.PreemptionSignals = []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
		s.take("preemption-signals", "SIGTERM,SIGUSR1", s.Scheduler+" stops jobs, not hosts")
	}
	if cfg.NprocPerNode == 0 && job.GPUs.Value > 0 {
		cfg.NprocPerNode = job.GPUs.Value
		s.take("nproc-per-node", strconv.Itoa(cfg.NprocPerNode), job.GPUs.From)
	}
	return cfg, s, nil
}

// setDefault sets what RdzvConf does not say.
func (cfg *Config) setDefault(key, value string) {
	if _, said := cfg.RdzvConf[key]; said {
		return
	}
	conf := maps.Clone(cfg.RdzvConf)
	if conf == nil {
		conf = map[string]string{}
	}
	conf[key] = value
	cfg.RdzvConf = conf
}
