package failure

import "syscall"

// ExitStatus is the exit status of an agent that passes on how the job's root cause f
// ended: f's own exit code, 128+N where it died of signal N, and 127 or 126, as a shell
// has it, where it could not be started. Where there is no worker to blame (f is nil),
// or its end was not its own doing, the status is 1. It is never 0. docs/reference/exit-codes.md has the
// table.
func (f *ProcessFailure) ExitStatus() int {
	switch {
	case f == nil, f.Abandoned != "" && f.StartError == "", f.StoppedBy != 0 && f.ExitCode < 0:
		return 1
	case f.StartError != "" && f.Errno == int(syscall.ENOENT):
		return 127
	case f.StartError != "":
		return 126
	case f.ExitCode < 0 && f.ExitCode >= -maxSignal:
		return 128 - f.ExitCode
	case f.ExitCode > 0 && f.ExitCode <= 255:
		return f.ExitCode
	}
	return 1
}
