package failure

import (
	"cmp"
	"fmt"
	"syscall"

	"github.com/muster-run/muster/internal/format/text"
)

// maxSignal is the highest number of a signal.
const maxSignal = 64

// A Signal is a signal that has its name in JSON.
type Signal syscall.Signal

// String is the name as Python's signal.Signals spells it ("SIGKILL"), or "signal 33"
// for one without. Real-time signals, most of which have no name in Python, are
// counted from SIGRTMIN ("SIGRTMIN+6").
func (s Signal) String() string {
	return cmp.Or(text.SignalName(syscall.Signal(s)), fmt.Sprintf("signal %d", int(s)))
}

// MarshalText returns String.
func (s Signal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes; what is not a signal becomes 0.
func (s *Signal) UnmarshalText(text []byte) error {
	for *s = maxSignal; *s > 0 && s.String() != string(text); *s-- {
	}
	return nil
}
