package text

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The real-time signals that a program can use; the C library keeps the two
// before them.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// SignalName returns a signal's name as Python's signal.Signals spells it
// ("SIGKILL"). Real-time signals, most of which have no name in Python, are
// counted from SIGRTMIN ("SIGRTMIN+6"). Numbers that are no signal give "".
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	switch {
	case sig == firstRealTime:
		return "SIGRTMIN"
	case sig == lastRealTime:
		return "SIGRTMAX"
	case sig > firstRealTime && sig < lastRealTime:
		return fmt.Sprintf("SIGRTMIN+%d", sig-firstRealTime)
	}
	return ""
}

// Signal returns the signal of a name, with or without SIG, in capitals; 0 if there
// is none. It knows all that Python's signal.Signals has, and the real-time signals
// from SIGRTMIN to SIGRTMAX as the C library counts them, as SIGRTMIN+3.
func Signal(name string) syscall.Signal {
	switch name = strings.TrimPrefix(name, "SIG"); name {
	case "CLD":
		return unix.SIGCHLD
	case "IOT":
		return unix.SIGABRT
	case "POLL":
		return unix.SIGIO
	}
	rest, found := strings.CutPrefix(name, "RTMIN")
	n := firstRealTime
	if !found {
		rest, found = strings.CutPrefix(name, "RTMAX")
		n = lastRealTime
	}
	if !found {
		return unix.SignalNum("SIG" + name)
	}
	if rest != "" {
		d, err := strconv.Atoi(rest)
		if err != nil || rest[0] != '+' && rest[0] != '-' {
			return 0
		}
		n += max(-lastRealTime, min(d, lastRealTime))
	}
	if n < firstRealTime || n > lastRealTime {
		return 0
	}
	return syscall.Signal(n)
}

// ParseSignal reads a signal's name, in any case and with or without SIG, or its
// number. It returns 0 for anything else.
func ParseSignal(s string) syscall.Signal {
	s = strings.ToUpper(strings.TrimSpace(s))
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= lastRealTime {
		return syscall.Signal(n)
	}
	return Signal(s)
}

// Signals reads comma-separated names, as --signals-to-handle has them. A name may lack its
// SIG. Names that no signal has are returned as unknown, not as an
// error; SIGKILL and SIGSTOP, which no program can handle, are an error.
// Source: PContext.start in torch/distributed/elastic/multiprocessing/api.py.
func Signals(names string) (signals []syscall.Signal, unknown []string, err error) {
	var errs []error
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		sig := Signal(name)
		switch {
		case sig == 0:
			unknown = append(unknown, name)
		case sig == syscall.SIGKILL || sig == syscall.SIGSTOP:
			errs = append(errs, fmt.Errorf("%s cannot be handled by any program; leave it out", name))
		case !slices.Contains(signals, sig):
			signals = append(signals, sig)
		}
	}
	return signals, unknown, errors.Join(errs...)
}
