package launch

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/muster-run/muster/process"
)

// handleSignals makes the first of sigs cancel the returned context, with a
// *process.SignalError as its cause, and the second one close hurry, which cuts
// the grace that workers have. A SIGHUP that was ignored when muster started
// (nohup) stays ignored. stop undoes it all.
//
// SIGPIPE is caught and dropped: a console that went away is a write error for
// whoever writes there, no reason to end the job. It is not ignored, since
// workers would inherit that.
func handleSignals(ctx context.Context, sigs []syscall.Signal, log *slog.Logger) (_ context.Context, hurry <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 4)
	for _, sig := range sigs {
		if sig == syscall.SIGHUP && signal.Ignored(sig) {
			continue
		}
		signal.Notify(got, sig)
	}
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, syscall.SIGPIPE)

	cut := make(chan struct{})
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case s := <-got:
				sig := s.(syscall.Signal)
				switch n {
				case 0:
					cancel(&process.SignalError{Signal: sig})
				case 1:
					log.Warn("second signal; killing the workers", "signal", sig.String())
					close(cut)
				}
			case <-quit:
				return
			}
		}
	}()
	return ctx, cut, func() {
		signal.Stop(got)
		signal.Stop(dropped)
		close(quit)
		<-done
		cancel(context.Canceled)
	}
}
