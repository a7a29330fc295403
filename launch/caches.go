package launch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/agent"
	"github.com/muster-run/muster/failure"
	"github.com/muster-run/muster/internal/compilecache"
)

const (
	seedTime   = 2 * time.Minute  // how long the first workers wait for compile caches
	saveEvery  = 5 * time.Minute  // while they run
	savingTime = 30 * time.Second // how long the end of the job waits for what is saved then
	compiling  = time.Minute      // before a failure: what was written then may not be whole
)

// caches carries compile caches to this host before its first workers start, and what they compile
// back to Workers.CacheDir, while they run and when they have ended. Whatever is wrong with that
// directory, or slow, stops no job.
type caches struct {
	cfg    *Config
	log    *slog.Logger
	seeded chan map[string]string // what the workers get; of capacity 1, and closed after it
	save   chan time.Time         // until when; closed by end
	done   chan struct{}
	ctx    context.Context // of the job
	cancel context.CancelFunc

	ready atomic.Bool // there is something to save to

	once sync.Once
	env  map[string]string // from seeded
}

// newCaches begins to seed. The caller calls end.
func newCaches(ctx context.Context, cfg *Config) *caches {
	saving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &caches{cfg: cfg, log: cfg.Logger, seeded: make(chan map[string]string, 1), save: make(chan time.Time, 8), done: make(chan struct{}), ctx: ctx, cancel: cancel}
	go c.run(saving)
	return c
}

func (c *caches) run(saving context.Context) {
	defer close(c.done)
	cache := c.seed()
	if cache == nil {
		return
	}
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			c.saveUntil(saving, cache, now.Add(-compiling))
		case until, ok := <-c.save:
			if !ok {
				return
			}
			c.saveUntil(saving, cache, until)
		}
	}
}

// seed returns nil if there is no cache.
func (c *caches) seed() *compilecache.Cache {
	defer close(c.seeded)
	ctx, cancel := context.WithTimeout(c.ctx, seedTime)
	defer cancel()
	start := time.Now()
	cache, err := compilecache.New(c.cfg.Workers.CacheDir, "", c.cfg.LookupEnv, c.log)
	if err != nil {
		c.log.Warn("compile caches are not carried", "error", err)
		return nil
	}
	n, err := cache.Seed(ctx)
	if c.log.Info("compile caches are on this host", "seeded", n, "took", time.Since(start)); err != nil {
		c.log.Warn("compile caches are not seeded in full; the workers compile what is missing", "error", err)
	}
	c.ready.Store(true)
	c.seeded <- cache.Env()
	return cache
}

// Env is what the workers get, once the host is seeded; nothing if that takes too long.
func (c *caches) Env() map[string]string {
	c.once.Do(func() {
		timer := time.NewTimer(seedTime)
		defer timer.Stop()
		select {
		case c.env = <-c.seeded:
		case <-timer.C:
			c.log.Warn("compile caches are not carried", "error", fmt.Sprintf("nothing came of %s within %v", c.cfg.Workers.CacheDir, seedTime))
		case <-c.ctx.Done():
		}
	})
	return c.env
}

func (c *caches) saveUntil(ctx context.Context, cache *compilecache.Cache, until time.Time) {
	if n, err := cache.Save(ctx, until); err != nil {
		c.log.Warn("compile caches are not saved in full", "files", n, "error", err)
	} else if n > 0 {
		c.log.Info("compile caches are saved", "files", n)
	}
}

// Observe saves what the workers of an attempt have compiled.
func (c *caches) Observe(e agent.Event) {
	w, ok := e.What.(agent.AttemptEnded)
	if !ok {
		return
	}
	until := e.Time
	if slices.ContainsFunc(w.Causes, func(c failure.Cause) bool { return c != failure.CauseSuccess }) {
		until = until.Add(-compiling)
	}
	select {
	case c.save <- until:
	default: // the shared directory is stuck
	}
}

// end waits for what is being saved, until hurry at most.
func (c *caches) end(hurry <-chan struct{}) {
	close(c.save)
	defer c.cancel()
	if !c.ready.Load() {
		return
	}
	timer := time.NewTimer(savingTime)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-hurry:
	}
}
