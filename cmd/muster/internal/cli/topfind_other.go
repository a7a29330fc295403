//go:build !linux

package cli

import "errors"

// findAgents cannot look into other processes on this system.
func findAgents() (agents []foundAgent, silent int, err error) {
	return nil, 0, errors.New("agents are found on Linux only; give the address of --health-addr")
}

func agentOf(int) (foundAgent, bool) { return foundAgent{}, false }
