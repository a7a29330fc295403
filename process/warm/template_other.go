//go:build !linux

package warm

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"time"

	"github.com/muster-run/muster/process"
)

// A template is possible on Linux only.
type template struct {
	program *program
	names   []string
	cmd     *exec.Cmd
	modules int
	took    time.Duration
	isReady bool
}

// A Server is possible on Linux only.
type Server struct{}

// NewServer always fails.
func NewServer(context.Context, int, *slog.Logger) (*Server, error) {
	return nil, fmt.Errorf("%s has no server of start_method", runtime.GOOS)
}

// Fork is never called.
func (*Server) Fork(process.Image, func(int) error) error { return nil }

// Close does nothing.
func (*Server) Close() {}

func startTemplate(*Host, *program, []string, bool) (*template, error) {
	return nil, fmt.Errorf("%s has no warm starts", runtime.GOOS)
}

func (*template) load(context.Context, time.Duration, func(string, string)) (map[string]string, error) {
	return nil, nil
}
func (*template) fork(process.Image, func(int) error, bool) error { return nil }
func (*template) isAlive() bool                                   { return false }
func (*template) isFit() bool                                     { return false }
func (*template) gone() <-chan struct{}                           { return nil }
func (*template) lastStep() (state, step string)                  { return "", "" }
func (*template) close()                                          {}
