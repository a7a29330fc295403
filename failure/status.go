package failure

import "syscall"

// Modes of ExitStatus, the values of --exit-code.
const (
	ModeTorchrun = "torchrun"
	ModeWorker   = "worker"
)

// ExitStatus returns the agent's exit status for a job that failed.
// ModeTorchrun gives 1, whatever happened; ModeWorker gives the root cause's
// own exit code, 128+N where it died of signal N, and 127 or 126, as a shell
// has it, where it could not be started. Where there is no worker to blame
// (root is nil), or it did not end at all, the status is 1. It is never 0.
// docs/exit-codes.md has the table.
func ExitStatus(mode string, root *ProcessFailure) int {
	if mode != ModeWorker || root == nil {
		return 1
	}
	switch {
	case root.StartError != "":
		if root.Errno == int(syscall.ENOENT) {
			return 127
		}
		return 126
	case root.Abandoned != "":
		return 1
	case root.ExitCode < 0 && root.ExitCode >= -maxSignal:
		return 128 - root.ExitCode
	case root.ExitCode > 0 && root.ExitCode <= 255:
		return root.ExitCode
	}
	return 1
}
