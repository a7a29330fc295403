//go:build !linux

package warm

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"github.com/muster-run/muster/process"
)

// A template is possible on Linux only.
type template struct {
	program *program
	names   []string
	learn   string
	cmd     *exec.Cmd
	modules int
	isReady bool
}

func startTemplate(*Host, *program, []string, bool) (*template, error) {
	return nil, fmt.Errorf("%s has no warm starts", runtime.GOOS)
}

func (*template) load(context.Context, time.Duration, func(string)) (map[string]string, error) {
	return nil, nil
}
func (*template) fork(process.Image, func(int) error) error { return nil }
func (*template) isAlive() bool                             { return false }
func (*template) lastStep() string                          { return "" }
func (*template) close()                                    {}
