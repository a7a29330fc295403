package cli

import (
	"context"
	"io"

	"github.com/muster-run/muster/cmd/muster/internal/command"
)

// StoreCommand is `muster store`.
func StoreCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Start(ctx, "store", storeCommand, args, stdout, stderr)
}
