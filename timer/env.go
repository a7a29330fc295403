package timer

import (
	"os"
	"time"
)

// Variables by which an agent tells its workers of its timer server.
// Source: elastic/agent/server/local_elastic_agent.py.
const (
	// EnvFile is the path of the FIFO.
	EnvFile = "TORCHELASTIC_TIMER_FILE"
	// EnvSocket is the path of the socket.
	EnvSocket = "MUSTER_TIMER_SOCKET"
)

// FromEnv returns the client of a worker: of the agent's socket, or of its FIFO where
// there is no socket. Where the environment names neither, as in a program that runs
// by itself, it is one that does nothing.
// Source: configure in api.py.
func FromEnv() Client {
	if path := os.Getenv(EnvSocket); path != "" {
		return &SocketClient{Path: path}
	}
	if path := os.Getenv(EnvFile); path != "" {
		return &FileClient{Path: path}
	}
	return nowhere{}
}

// nowhere is the client where nobody serves timers.
type nowhere struct{}

func (nowhere) Acquire(string, time.Time) error { return nil }
func (nowhere) Release(string) error            { return nil }
