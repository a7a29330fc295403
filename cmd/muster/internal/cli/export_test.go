package cli

import (
	"context"
	"io"
)

// StoreCommand is `muster store`.
func StoreCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return commandNamed("store").start(ctx, args, nil, stdout, stderr)
}
