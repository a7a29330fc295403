package failure

import (
	"fmt"
	"syscall"

	"github.com/muster-run/muster/internal/text"
)

// maxSignal is the highest number of a signal.
const maxSignal = 64

// A Signal is a signal that has its name in JSON.
type Signal syscall.Signal

// String is the name as Python's signal.Signals spells it ("SIGKILL"), or "signal 33"
// for one without. Real-time signals, most of which have no name in Python, are
// counted from SIGRTMIN ("SIGRTMIN+6").
func (s Signal) String() string { return signalText(syscall.Signal(s)) }

// MarshalText returns String.
func (s Signal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes; what is no signal becomes 0.
func (s *Signal) UnmarshalText(text []byte) error {
	for *s = maxSignal; *s > 0 && s.String() != string(text); *s-- {
	}
	return nil
}

// signalText is the name, or "signal 33" for one without.
func signalText(sig syscall.Signal) string {
	if name := text.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", sig)
}

// signalMeaning says what a deadly signal means for the program that got it.
func signalMeaning(sig syscall.Signal) string {
	switch sig {
	case syscall.SIGSEGV:
		return "segmentation fault"
	case syscall.SIGBUS:
		return "bus error"
	case syscall.SIGABRT:
		return "the program aborted itself"
	case syscall.SIGFPE:
		return "arithmetic error"
	case syscall.SIGILL:
		return "illegal instruction"
	case syscall.SIGTRAP:
		return "trap"
	case syscall.SIGSYS:
		return "forbidden system call"
	case syscall.SIGPIPE:
		return "wrote to a pipe that nobody reads"
	case syscall.SIGXCPU:
		return "CPU time limit"
	case syscall.SIGXFSZ:
		return "file size limit"
	case syscall.SIGHUP:
		return "the terminal went away"
	}
	return ""
}
