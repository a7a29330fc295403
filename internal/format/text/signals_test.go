package text_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/format/text"
)

func TestSignals(t *testing.T) {
	tests := []struct {
		text    string
		want    []syscall.Signal
		unknown []string
		err     string
	}{
		{text: "SIGTERM,SIGINT,SIGHUP,SIGQUIT", want: []syscall.Signal{15, 2, 1, 3}},
		{text: " SIGTERM , SIGUSR1 ", want: []syscall.Signal{15, 10}},
		{text: "TERM,USR2", want: []syscall.Signal{15, 12}},
		{text: "SIGTERM,TERM,SIGTERM", want: []syscall.Signal{15}},
		{text: "SIGCLD,SIGIOT,SIGPOLL", want: []syscall.Signal{17, 6, 29}},
		{text: "SIGRTMIN,SIGRTMIN+2,SIGRTMAX,SIGRTMAX-1", want: []syscall.Signal{34, 36, 64, 63}},
		{text: "SIGRTMIN-1,SIGRTMAX+1,SIGRTMIN2,SIGRTMID,SIGRTM,SIGRTMIN+", unknown: []string{"SIGRTMIN-1", "SIGRTMAX+1", "SIGRTMIN2", "SIGRTMID", "SIGRTM", "SIGRTMIN+"}},
		{text: "SIGFOO,SIGTERM,sigint", want: []syscall.Signal{15}, unknown: []string{"SIGFOO", "sigint"}},
		{text: "", unknown: []string{""}},
		{text: "SIGKILL,SIGTERM", want: []syscall.Signal{15}, err: "SIGKILL cannot be handled"},
		{text: "STOP", err: "STOP cannot be handled"},
	}
	for _, tt := range tests {
		got, unknown, err := text.Signals(tt.text)
		if !cmp.Equal(got, tt.want) || !cmp.Equal(unknown, tt.unknown) {
			t.Errorf("Signals(%q) = %d, unknown %q; want %d, unknown %q", tt.text, got, unknown, tt.want, tt.unknown)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("Signals(%q): error %v, want %q", tt.text, err, tt.err)
		}
	}
}

func FuzzSignals(f *testing.F) {
	for _, s := range []string{"SIGTERM,SIGINT,SIGHUP,SIGQUIT", "", "KILL", "SIGRTMIN+30,", "SIGRTMAX-99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		signals, _, _ := text.Signals(in)
		for _, sig := range signals {
			if sig < 1 || sig > 64 || sig == syscall.SIGKILL || sig == syscall.SIGSTOP {
				t.Errorf("%q gives signal %d", in, sig)
			}
		}
	})
}
