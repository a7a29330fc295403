package process

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// NotifyContext returns a context that the first of the signals cancels, with a
// *SignalError as its cause. The second signal closes hurry, which is to cut the grace
// that workers have; an echo of the first one within a second does not count, unless
// it is SIGINT. stop undoes it all; the caller calls it, perhaps again. It does not close hurry:
// who waits for that waits for the end of the work, too, as of Group.Done.
//
// A SIGHUP that was ignored when the program started (nohup) stays ignored. Without
// signals none is handled; torchrun handles SIGTERM, SIGINT, SIGHUP and SIGQUIT. A nil
// log means slog.Default().
// Source: PContext.start and _terminate_process_handler in multiprocessing/api.py.
func NotifyContext(ctx context.Context, log *slog.Logger, sigs ...syscall.Signal) (
	_ context.Context, hurry <-chan struct{}, stop func(),
) {
	log = cmp.Or(log, slog.Default())
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 4)
	for _, sig := range sigs {
		if sig == syscall.SIGHUP && signal.Ignored(sig) {
			continue
		}
		signal.Notify(got, sig)
	}
	cut, quit := make(chan struct{}), make(chan struct{})
	var heeding sync.WaitGroup
	heeding.Go(func() {
		heed(got, quit, func(sig syscall.Signal) {
			cancel(&SignalError{Signal: sig})
		}, func(sig syscall.Signal) {
			log.Warn("second signal; killing the workers", "signal", sig.String())
			close(cut)
		})
	})
	return ctx, cut, sync.OnceFunc(func() {
		signal.Stop(got)
		close(quit)
		heeding.Wait()
		cancel(context.Canceled)
	})
}

// heed calls stop for the first signal that it gets and cut for the second that is
// not its echo, until quit is closed.
func heed(got <-chan os.Signal, quit <-chan struct{}, stop, cut func(syscall.Signal)) {
	var first syscall.Signal
	var since time.Time
	for n := 0; ; {
		select {
		case <-quit:
			return
		case s := <-got:
			switch sig := s.(syscall.Signal); {
			case n == 0:
				first, since = sig, time.Now()
				stop(sig)
			case n > 1 || isEcho(first, sig, time.Since(since)):
				continue
			default:
				cut(sig)
			}
			n++
		}
	}
}

// echoTime is how long after a signal the same one again is not an order of its own, interruptEcho
// the same for SIGINT.
const echoTime, interruptEcho = time.Second, 100 * time.Millisecond

// isEcho reports whether a second signal is the first one once more, rather than
// somebody's impatience: Slurm sends SIGTERM two or three times within milliseconds
// to the tasks of a job that is cancelled or out of time. timeout(1) signals its child and then
// the group, as a script does that passes Ctrl-C on. A person's second Ctrl-C comes later, and counts.
func isEcho(first, second syscall.Signal, after time.Duration) bool {
	if first == syscall.SIGINT {
		return second == first && after < interruptEcho
	}
	return second == first && after < echoTime
}
