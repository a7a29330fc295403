package node

import (
	"context"
	"errors"
	"testing"

	"github.com/muster-run/muster/store"
)

// endedStore is a store whose client has been told to end.
type endedStore struct{ store.Store }

func (endedStore) Set(ctx context.Context, _ string, _ []byte) error { return context.Cause(ctx) }

// A job that is stopped while it publishes where the workers meet says so once.
func TestPublishFailsOnce(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	end(stopped)
	if err := publish(ctx, &round{store: endedStore{}}); err != stopped {
		t.Errorf("publish: %v", err)
	}
}
