package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, stop := time.Now(), errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := sleep.For(ctx, time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		if err := sleep.For(ctx, time.Hour); err != stop || time.Since(start) != time.Hour+time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		if err := sleep.Until(ctx, done); err != stop {
			t.Errorf("got %v where only the context has ended", err)
		}
		close(done)
		for range 100 { // select would take either
			if err := sleep.Until(ctx, done); err != nil {
				t.Fatalf("got %v where both have ended", err)
			}
		}
	})
}
