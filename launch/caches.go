package launch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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
// back to Workers.CacheDir, while they run and when they have ended.
type caches struct {
	*compilecache.Cache
	log    *slog.Logger
	seeded chan struct{}
	save   chan time.Time // until when; closed by end
	done   chan struct{}
	cancel context.CancelFunc
}

// newCaches begins to seed. The caller calls end.
func newCaches(ctx context.Context, cfg *Config) (*caches, error) {
	cache, err := compilecache.New(cfg.Workers.CacheDir, "", cfg.LookupEnv, cfg.Logger)
	if err != nil {
		return nil, &ConfigError{fmt.Errorf("compile caches: %w", err)}
	}
	saving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &caches{cache, cfg.Logger, make(chan struct{}), make(chan time.Time, 8), make(chan struct{}), cancel}
	go c.run(ctx, saving)
	return c, nil
}

func (c *caches) run(ctx, saving context.Context) {
	defer close(c.done)
	c.seed(ctx)
	close(c.seeded)
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			c.saveUntil(saving, now.Add(-compiling))
		case until, ok := <-c.save:
			if !ok {
				return
			}
			c.saveUntil(saving, until)
		}
	}
}

func (c *caches) seed(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, seedTime)
	defer cancel()
	start := time.Now()
	n, err := c.Seed(ctx)
	if c.log.Info("compile caches are on this host", "seeded", n, "took", time.Since(start)); err != nil {
		c.log.Warn("compile caches are not seeded in full; the workers compile what is missing", "error", err)
	}
}

func (c *caches) saveUntil(ctx context.Context, until time.Time) {
	if n, err := c.Save(ctx, until); err != nil {
		c.log.Warn("compile caches are not saved in full", "files", n, "error", err)
	} else if n > 0 {
		c.log.Info("compile caches are saved", "files", n)
	}
}

// Env is what the workers get, once the host is seeded.
func (c *caches) Env() map[string]string {
	<-c.seeded
	return c.Cache.Env()
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
	timer := time.NewTimer(savingTime)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-hurry:
	}
	c.cancel()
}
