package launch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/muster-run/muster/internal/text"
)

// ParseSignals reads the comma-separated names of --signals-to-handle. A name
// may lack its SIG. Names that no signal has are returned as unknown, not as an
// error; SIGKILL and SIGSTOP, which no program can handle, are an error.
// Source: PContext.start in torch/distributed/elastic/multiprocessing/api.py.
func ParseSignals(names string) (signals []syscall.Signal, unknown []string, err error) {
	var errs []error
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		sig := text.Signal(name)
		switch {
		case sig == 0:
			unknown = append(unknown, name)
		case sig == syscall.SIGKILL || sig == syscall.SIGSTOP:
			errs = append(errs, fmt.Errorf("signals to handle: %s cannot be handled by any program", name))
		case !slices.Contains(signals, sig):
			signals = append(signals, sig)
		}
	}
	return signals, unknown, errors.Join(errs...)
}
