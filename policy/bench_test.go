package policy_test

import (
	"bytes"
	"testing"

	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/policy"
)

func BenchmarkDecide(b *testing.B) {
	p, err := policy.Parse([]byte(full), "p.yaml")
	if err != nil {
		b.Fatal(err)
	}
	e := &policy.Engine{Policy: p, MaxRestarts: 10}
	f := policy.Failure{Cause: failure.CauseExitCode, ExitCode: 71, Host: "gpu-7", Role: "trainer", Stderr: policy.Tail(bytes.Repeat([]byte("a line of stderr\n"), 600))}
	for b.Loop() {
		e.Decide(f, start)
	}
}
