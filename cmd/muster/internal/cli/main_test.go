package cli

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-run/muster/internal/test/golden"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// The test binary is muster and torchrun, too, for the scripts.
func TestMain(m *testing.M) {
	process.GuardMain() // or a guard that a job starts would run the tests
	testproc.Prepare()
	program := func() { os.Exit(Run(context.Background(), os.Args, os.Stdout, os.Stderr)) }
	testscript.Main(m, map[string]func(){"muster": program, "torchrun": program, "train": formatsWorker})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *golden.Update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// Nothing of the caller's settings but where its programs are.
			env.Setenv("MUSTER_DEVICES", "0")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
	})
}
