package cli

import (
	"slices"

	"github.com/muster-run/muster/launch"
)

// meeting are the options with which somebody says himself how the hosts meet. With
// any of them no scheduler is asked.
var meeting = []string{"nnodes", "rdzv-backend", "rdzv-endpoint", "node-rank", "master-addr", "master-port"}

// fromScheduler takes from the scheduler that started this process what neither the
// command line nor a PET_ variable says.
func (r *reader) fromScheduler(cfg launch.Config) launch.Config {
	if cfg.Standalone {
		return cfg
	}
	if slices.ContainsFunc(meeting, r.isGiven) {
		r.compare(&cfg)
		return cfg
	}
	asked := cfg
	asked.MinNodes, asked.MaxNodes = 0, 0
	asked.RdzvBackend, asked.RdzvEndpoint, asked.MasterAddr = "", "", ""
	if !r.isGiven("nproc-per-node") {
		asked.NprocPerNode = 0
	}
	asked, schedule, err := launch.FromScheduler(asked)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	if schedule == nil {
		return cfg
	}
	r.schedule = schedule
	r.compare(&cfg)
	if asked.NprocPerNode == 0 {
		asked.NprocPerNode = cfg.NprocPerNode
	}
	if asked.RdzvBackend == "" { // one host
		asked.RdzvBackend = cfg.RdzvBackend
	}
	asked.MasterAddr = cfg.MasterAddr
	return asked
}

// compare warns of what contradicts the scheduler, whose word counts for less: there
// may be other hosts, and workers that share a GPU.
func (r *reader) compare(cfg *launch.Config) {
	said, schedule, err := launch.FromScheduler(launch.Config{Env: cfg.Env})
	if schedule == nil || err != nil {
		return
	}
	if r.isGiven("nnodes") && cfg.MinNodes > said.MaxNodes {
		r.warn("--nnodes wants %d hosts, %s has started %d; waiting for the others", cfg.MinNodes, schedule.Scheduler, said.MaxNodes)
	}
	if r.isGiven("nproc-per-node") && said.NprocPerNode > 0 && cfg.NprocPerNode > said.NprocPerNode {
		r.warn("--nproc-per-node wants %d workers, %s has given this host %d GPUs", cfg.NprocPerNode, schedule.Scheduler, said.NprocPerNode)
	}
}
