package process_test

import (
	"context"

	"github.com/muster-run/muster/process"
)

func registerFuncs() {
	process.Register("echo", func(_ context.Context, input []byte) ([]byte, error) { return input, nil })
}
