package launch

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/muster-run/muster/process"
)

// handleSignals makes the first of sigs cancel the returned context, with a
// *process.SignalError as its cause, and the second one close hurry, which cuts
// the grace that workers have; an echo of the first one does not count. A SIGHUP that was ignored when muster started
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
		heed(got, quit, func(sig syscall.Signal) {
			cancel(&process.SignalError{Signal: sig})
		}, func(sig syscall.Signal) {
			log.Warn("second signal; killing the workers", "signal", sig.String())
			close(cut)
		})
	}()
	return ctx, cut, func() {
		signal.Stop(got)
		signal.Stop(dropped)
		close(quit)
		<-done
		cancel(context.Canceled)
	}
}

// heed calls stop for the first signal that it gets and cut for the second that is
// not its echo, until quit is closed.
func heed(got <-chan os.Signal, quit <-chan struct{}, stop, cut func(syscall.Signal)) {
	var first syscall.Signal
	var since time.Time
	for n := 0; ; n++ {
		select {
		case s := <-got:
			sig := s.(syscall.Signal)
			if n == 1 && isEcho(first, sig, time.Since(since)) {
				n--
				continue
			}
			switch n {
			case 0:
				first, since = sig, time.Now()
				stop(sig)
			case 1:
				cut(sig)
			}
		case <-quit:
			return
		}
	}
}

// echoTime is how long after a signal the same one again is no order of its own.
const echoTime = time.Second

// isEcho says whether a second signal is the first one once more, rather than
// somebody's impatience: Slurm sends SIGTERM two or three times within milliseconds
// to the tasks of a job that is cancelled or out of time. Ctrl-C is a person's, and
// counts each time.
func isEcho(first, second syscall.Signal, after time.Duration) bool {
	return second == first && first != syscall.SIGINT && after < echoTime
}
