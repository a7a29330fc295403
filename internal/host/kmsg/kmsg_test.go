package kmsg_test

import (
	"testing"

	"github.com/muster-run/muster/internal/host/kmsg"
)

func TestAfter(t *testing.T) {
	for _, tt := range []struct {
		record, want string
		ok           bool
	}{
		{"4,1,5000,-;NVRM: a; b\n SUBSYSTEM=pci\n", "NVRM: a; b", true},
		{"4,1,4999,-;too early", "", false},
		{"4,1,5001;without flags", "without flags", true},
		{"4,1;no time", "", false},
		{"4,1,x,-;no number", "", false},
		{"no record", "", false},
		{"", "", false},
	} {
		if got, ok := kmsg.After(tt.record, 5000); got != tt.want || ok != tt.ok {
			t.Errorf("%q: got %q, %v, want %q, %v", tt.record, got, ok, tt.want, tt.ok)
		}
	}
}
