package jobs_test

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-run/muster/cmd/muster/internal/cli"
	"github.com/muster-run/muster/internal/test/testproc"
	"github.com/muster-run/muster/process"
)

// The test binary is muster, too.
func TestMain(m *testing.M) {
	process.GuardMain() // or a guard that a job starts would run the tests
	testproc.Prepare()
	testscript.Main(m, map[string]func(){"muster": func() {
		os.Exit(cli.Run(context.Background(), os.Args, os.Stdout, os.Stderr))
	}})
}
