package failure_test

import (
	"strings"
	"testing"

	"github.com/muster-run/muster/failure"
)

// Between a worker's death and the report lies little but this.
func BenchmarkNew(b *testing.B) {
	tail := []byte(strings.Repeat("step 12345: loss 0.123456 lr 0.001 tokens/s 123456\n", 1250) + simple + "\n")
	b.SetBytes(int64(len(tail)))
	for b.Loop() {
		failure.New(failure.Observation{ExitCode: 1, Ended: noon, StderrTail: tail})
	}
}
