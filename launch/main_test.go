package launch_test

import (
	"os"
	"testing"

	"github.com/muster-run/muster/process"
)

func TestMain(m *testing.M) {
	process.GuardMain()
	register()
	process.FuncMain()
	os.Exit(m.Run())
}
