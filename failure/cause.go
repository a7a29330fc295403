package failure

import "fmt"

func (f *ProcessFailure) decode() {
	f.Cause = fmt.Sprintf("exit code %d", f.ExitCode)
}
