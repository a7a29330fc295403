package rendezvous

import (
	"log/slog"
)

// A Spec is what every backend has to know of a node and its job.
type Spec struct {
	// RunID names the job; it must not be empty.
	RunID string
	// Role and LocalWorldSize are those of this node's workers, and Host is its
	// name, for messages.
	Role           string
	LocalWorldSize int
	Host           string
	// OnWaiting is called every few seconds while Next waits for other nodes, and
	// with a zero Waiting when that is over. It may be nil.
	OnWaiting func(Waiting)
	// Settings are the values of --rdzv-conf.
	Settings Settings
	// Logger gets what the rendezvous and its stores have to say. Default
	// slog.Default().
	Logger *slog.Logger
}
