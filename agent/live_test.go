package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/internal/live"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/store"
)

// A liveGroup notes when its workers are killed.
type liveGroup struct {
	Group
	killed chan struct{}
}

func (g *liveGroup) Kill() { close(g.killed) }

// An endingStore ends when it is told to.
type endingStore struct {
	store.Store
	ends chan struct{}
}

func (s *endingStore) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ends:
			cancel()
		case <-ctx.Done():
		}
	}()
	value, err := s.Store.Get(ctx, key)
	select {
	case <-s.ends:
		return nil, store.ErrClosed
	default:
		return value, err
	}
}

// The store of a round may end with its host a moment before the news of that come: the workers
// are not stopped before these are overdue.
func TestLiveStoreLost(t *testing.T) {
	for _, lost := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := &liveWorkers{workers: map[int]*liveWorker{}, host: live.Host{}, change: 2, news: make(chan struct{})}
			x := &liveWorker{Worker: live.Worker{Heard: true, Member: true, Done: 1, Ready: &live.Said{Change: 2, Handle: "a"}}}
			w.workers[0], w.host[0] = x, &x.Worker
			a := &Agent{live: w, log: slog.New(slog.DiscardHandler), cfg: Config{PeerTimeout: 2 * time.Second}}
			at := newAttempt(context.Background())
			group, s := &liveGroup{killed: make(chan struct{})}, &endingStore{store.NewMemory(), make(chan struct{})}
			at.group, at.round = group, &rendezvous.Info{Rank: 1, WorldSize: 2, Store: s, MasterAddr: "192.0.2.1"}
			at.formed.Store(&membership{pending: true})
			at.wg.Go(func() { a.form(at, 2, true) })
			synctest.Wait()
			close(s.ends)
			time.Sleep(time.Second)
			if lost {
				at.close()
			}
			select {
			case <-group.killed:
				if lost {
					t.Error("they are stopped")
				}
			case <-time.After(time.Minute):
				if !lost {
					t.Error("the store is lost and nothing else, and they are not stopped")
				}
			}
			at.close()
		})
	}
}
