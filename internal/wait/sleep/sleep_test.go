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
