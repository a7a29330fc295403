//go:build !linux

package autopsy

import (
	"context"
	"errors"
	"syscall"
)

func identify(pid int) identity {
	if err := syscall.Kill(pid, 0); err == syscall.ESRCH {
		return identity{state: stateGone, uid: -1}
	}
	return identity{state: "unknown", exe: "python", uid: -1}
}

func commandLine(int) []string            { return nil }
func environment(int) ([]string, error)   { return nil, nil }
func hasLibpython(int) bool               { return true }
func descendants(pid, limit int) []int    { return nil }
func elsewhere(int) bool                  { return false }
func resolve(_ *subject, p string) string { return p }

func native(context.Context, int) Native {
	return Native{Problems: []string{"native state is known on Linux only"}}
}

// errOther is returned where processes cannot be looked for.
var errOther = errors.New("workers can be found on Linux only")

// Find, WorkersOf and TargetOf look for workers on Linux.
func Find(context.Context) ([]Job, error)              { return nil, errOther }
func WorkersOf(context.Context, int) ([]Target, error) { return nil, errOther }
func TargetOf(context.Context, int) (Target, error)    { return Target{}, errOther }
