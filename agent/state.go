package agent

import "github.com/muster-run/muster/internal/job/decide"

// State is the state of one host's worker group, spelt as TorchElastic prints it.
type State = decide.State

const (
	Unknown   = decide.Unknown   // TorchElastic's; no group here is in it
	Init      = decide.Init      // made, not started
	Healthy   = decide.Healthy   // workers run
	Unhealthy = decide.Unhealthy // a worker is wedged in the kernel
	Stopped   = decide.Stopped   // stopped on the way to a new round
	Succeeded = decide.Succeeded // every worker exited 0
	Failed    = decide.Failed    // a worker failed, or the job was stopped
)
