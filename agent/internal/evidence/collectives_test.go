package evidence_test

import (
	"testing"

	"github.com/muster-run/muster/agent/internal/evidence"
	"github.com/muster-run/muster/process"
)

// Others are asked before they are stopped only where a collective may have ended a worker: the rest does not wait.
func TestMayBeCollective(t *testing.T) {
	for _, tt := range []struct {
		name   string
		code   int
		stderr string
		want   bool
	}{
		{"gloo or NCCL aborts", -6, "", true},
		{"gloo raises", 1, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer", true},
		{"NCCL raises", 1, "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d", true},
		{"a collective raises", 1, `  File "/v/torch/distributed/distributed_c10d.py", line 81, in wrapper` + "\nRuntimeError: x", true},
		{"the program raises", 1, "ValueError: boom", false},
		{"the program raises under @record", 1, `  File "/v/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 3` +
			"\nValueError: boom", false},
		{"the program crashes", -11, "", false},
		{"somebody kills it", -9, "", false},
	} {
		if got := evidence.MayBeCollective(process.Exit{Code: tt.code}, []byte(tt.stderr)); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
