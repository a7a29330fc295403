package cli

import "github.com/muster-run/muster/launch"

// meeting are the options with which somebody says himself how the hosts meet. With
// any of them no scheduler is asked.
var meeting = []string{"nnodes", "rdzv-backend", "rdzv-endpoint", "node-rank", "master-addr", "master-port"}

// fromScheduler takes from the scheduler that started this process what neither the
// command line nor a PET_ variable says.
func (r *reader) fromScheduler(cfg launch.Config) launch.Config {
	if cfg.Standalone {
		return cfg
	}
	for _, name := range meeting {
		if r.isGiven(name) {
			return cfg
		}
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
	if asked.NprocPerNode == 0 {
		asked.NprocPerNode = cfg.NprocPerNode
	}
	if asked.RdzvBackend == "" { // one host
		asked.RdzvBackend = cfg.RdzvBackend
	}
	asked.MasterAddr = cfg.MasterAddr
	return asked
}
