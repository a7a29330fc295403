package launch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ParseSignals reads the comma-separated names of --signals-to-handle. A name
// may lack its SIG. Names that no signal has are returned as unknown, not as an
// error; SIGKILL and SIGSTOP, which no program can handle, are an error.
// Source: PContext.start in torch/distributed/elastic/multiprocessing/api.py.
func ParseSignals(text string) (signals []syscall.Signal, unknown []string, err error) {
	var errs []error
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		sig := signalNumber(name)
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

// signalNumber returns the signal of that name, 0 if there is none.
func signalNumber(name string) syscall.Signal {
	switch name = "SIG" + strings.TrimPrefix(name, "SIG"); name {
	case "SIGCLD":
		return unix.SIGCHLD
	case "SIGIOT":
		return unix.SIGABRT
	case "SIGPOLL":
		return unix.SIGIO
	}
	if n, ok := realTime(name); ok {
		return syscall.Signal(n)
	}
	return unix.SignalNum(name)
}

// realTime reads SIGRTMIN, SIGRTMIN+1 … SIGRTMAX as the C library numbers them.
func realTime(name string) (int, bool) {
	const first, last = 34, 64
	rest, ok := strings.CutPrefix(name, "SIGRTM")
	if !ok {
		return 0, false
	}
	n := first
	if strings.HasPrefix(rest, "AX") {
		n = last
	} else if !strings.HasPrefix(rest, "IN") {
		return 0, false
	}
	if rest = rest[2:]; rest != "" {
		d, err := strconv.Atoi(rest)
		if err != nil || rest[0] != '+' && rest[0] != '-' || d < first-last || d > last-first {
			return 0, false
		}
		n += d
	}
	return n, n >= first && n <= last
}
