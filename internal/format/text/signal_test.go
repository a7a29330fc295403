package text_test

import (
	"syscall"
	"testing"

	"github.com/muster-run/muster/internal/format/text"
)

func TestSignal(t *testing.T) {
	for name, want := range map[string]syscall.Signal{
		"SIGTERM": 15, "TERM": 15, "SIGCLD": syscall.SIGCHLD, "IOT": syscall.SIGABRT, "SIGPOLL": syscall.SIGIO,
		"SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMIN+30": 64, "SIGRTMAX": 64, "SIGRTMAX-1": 63,
		"": 0, "SIG": 0, "sigterm": 0, "SIGNONE": 0, "SIGRTMIN+31": 0, "SIGRTMIN-1": 0, "SIGRTMIN3": 0, "SIGRTMAX+1": 0,
		"SIGRTMIN+": 0, "SIGRTMIN+x": 0, "SIGRTMIN+9223372036854775807": 0, "SIGRT": 0,
	} {
		if got := text.Signal(name); got != want {
			t.Errorf("%s is signal %d, want %d", name, got, want)
		}
	}
	for sig := syscall.Signal(-1); sig <= 65; sig++ {
		if name := text.SignalName(sig); name != "" && text.Signal(name) != sig {
			t.Errorf("%s, the name of signal %d, is that of signal %d", name, sig, text.Signal(name))
		}
	}
}

func TestParseSignal(t *testing.T) {
	for s, want := range map[string]syscall.Signal{
		"sigterm": 15, " Term ": 15, "15": 15, "64": 64, "rtmin+3": 37, "65": 0, "0": 0, "-1": 0, "": 0, "none": 0,
	} {
		if got := text.ParseSignal(s); got != want {
			t.Errorf("%q is signal %d, want %d", s, got, want)
		}
	}
}
