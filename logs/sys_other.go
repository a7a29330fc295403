//go:build !linux

package logs

import (
	"errors"
	"os"
)

// relayTerminal fails: on this system a worker with a terminal inherits it, and
// nothing of its stderr is kept.
func relayTerminal(*os.File) (agent, worker *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}

func copyWindowSize(*os.File, []*os.File) {}

// diskFull is not known on this system.
func diskFull(string) bool { return false }
