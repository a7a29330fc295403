package autopsy_test

import (
	"runtime"
	"testing"

	"github.com/muster-run/muster/internal/job/autopsy"
)

func TestParseSyscall(t *testing.T) {
	tests := []struct{ text, want string }{
		{"running\n", ""},
		{"-1 0x7ffd 0x7f00\n", ""},
		{"99999 0x1 0x2\n", "syscall 99999"},
		{"", ""},
	}
	if runtime.GOARCH == "amd64" {
		tests = append(tests, []struct{ text, want string }{
			{"0 0x3 0x7ffd 0x1000 0x0 0x0 0x0 0x7ffd 0x7f00\n", "read fd 3"},
			{"202 0x7f2b 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f\n", "futex"},
			{"7 0x7f2b 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f\n", "poll"},
			{"0 0xffffffffffffffff 0x1\n", "read"},
		}...)
	}
	for _, tt := range tests {
		if got := autopsy.ParseSyscall(tt.text); got != tt.want {
			t.Errorf("of %q: %q, want %q", tt.text, got, tt.want)
		}
	}
}
