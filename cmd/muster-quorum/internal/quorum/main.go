package quorum

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

const usage = `muster-quorum is a part of muster, which starts it by itself:

  muster-quorum elect   elect the agent that holds a run's rendezvous, through etcd
  muster-quorum serve   run a member of etcd for a run

Settings are a line of JSON on stdin; the end of stdin ends it.
`

// Main runs muster-quorum and returns its exit status.
func Main(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	if len(args) != 1 || args[0] != "elect" && args[0] != "serve" {
		_, _ = io.WriteString(errOut, usage)
		if len(args) == 1 && (args[0] == "help" || args[0] == "--help" || args[0] == "-h") {
			return 0
		}
		return 2
	}
	ctx, stop := orphaned(ctx)
	defer stop()
	logger := slog.New(slog.NewJSONHandler(errOut, &slog.HandlerOptions{Level: slog.LevelInfo}))
	part := Elect
	if args[0] == "serve" {
		part = Serve
	}
	if part(ctx, in, out, logger) != nil { // already told on out
		return 1
	}
	return 0
}

// orphaned returns a context that ends with SIGUSR1, the signal for the parent's
// death. The signals of a terminal and of a scheduler are the agent's to handle: it
// ends its children when it has stopped its workers.
func orphaned(ctx context.Context) (context.Context, context.CancelFunc) {
	ignored := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
	signal.Ignore(ignored...)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGUSR1)
	return ctx, func() {
		stop()
		signal.Reset(ignored...)
	}
}
