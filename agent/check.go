package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/muster-run/muster/process"
	"github.com/muster-run/muster/rendezvous"
)

// checkTimes reports what is negative in cfg and must not be.
func (cfg *Config) checkTimes() error {
	var errs []error
	check := func(name string, d time.Duration) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", name, d))
		}
	}
	check("exit barrier timeout", cfg.ExitBarrierTimeout)
	if cfg.HangTimeout != HangAuto {
		check("hang timeout", cfg.HangTimeout)
	}
	check("live timeout", cfg.LiveTimeout)
	check("peer timeout", cfg.PeerTimeout)
	check("uninterruptible timeout", cfg.UninterruptibleTimeout)
	return errors.Join(errs...)
}

// nextRound is the rendezvous's Next with a round that the agent can work with.
func (a *Agent) nextRound(ctx context.Context) (*rendezvous.Info, error) {
	info, err := a.cfg.Rendezvous.Next(ctx)
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) (*rendezvous.Info, error) {
		return nil, fmt.Errorf("rendezvous %T: Next returned "+format, append([]any{a.cfg.Rendezvous}, args...)...)
	}
	switch {
	case info == nil:
		return bad("neither an Info nor an error")
	case info.WorldSize < 1 || info.Rank < 0 || info.Rank >= info.WorldSize:
		return bad("Rank %d and WorldSize %d; want a Rank from 0 to WorldSize-1", info.Rank, info.WorldSize)
	case info.Round < 0:
		return bad("Round %d; want 0 or more", info.Round)
	case info.WorldSize > 1 && (info.Store == nil || info.JobStore == nil):
		return bad("WorldSize %d and no Store or no JobStore", info.WorldSize)
	case info.JobStore == nil && a.cfg.Rendezvous.CanChange():
		return bad("no JobStore, which a Handler with Changes has")
	case info.Ranks != nil && !fits(info.Ranks.Base, a.cfg.Spec.LocalWorldSize, info.Ranks.WorldSize),
		info.Ranks != nil && !fits(info.Ranks.RoleBase, a.cfg.Spec.LocalWorldSize, info.Ranks.RoleWorldSize):
		return bad("Ranks %+v, in which %d workers have no place", *info.Ranks, a.cfg.Spec.LocalWorldSize)
	}
	return info, nil
}

// fits reports whether n ranks from base on are below size.
func fits(base, n, size int) bool { return base >= 0 && base <= size-n }

// startChecked is Config.Start whose Group does what the agent relies on. One of another program's may not: the agent
// would wait for the end of workers for ever, or count them as if they had succeeded.
func (a *Agent) startChecked(cfg process.Config) (Group, error) {
	g, err := a.cfg.Start(cfg)
	if own, ok := g.(*process.Group); own != nil || err != nil {
		return g, err
	} else if g == nil || ok {
		return nil, errors.New("agent: Config.Start, or launch's Workers.Start, returned neither a Group nor an error")
	}
	return &checkedGroup{g, len(cfg.Envs), a.log}, nil
}

// A checkedGroup is a Group of the caller's own.
type checkedGroup struct {
	Group
	size int
	log  *slog.Logger
}

// Wait takes an error for the failure of all workers, and a result without Failures for what its
// Exits say.
func (g *checkedGroup) Wait(ctx context.Context) (*process.Result, error) {
	result, err := g.Group.Wait(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err == nil && result == nil:
		err = errors.New("Group.Wait returned neither a result nor an error")
	case err == nil && result.Failures == nil:
		own := *result
		own.Failures = maps.Clone(own.Exits)
		maps.DeleteFunc(own.Failures, func(_ int, e process.Exit) bool { return e.Code == 0 })
		return &own, nil
	case err == nil:
		return result, nil
	}
	g.log.Error("the workers are not known any more and count as failed", "error", err)
	g.Kill()
	pids := g.PIDs()
	result = &process.Result{Exits: map[int]process.Exit{}}
	for i := range g.size {
		result.Exits[i] = process.Exit{LocalRank: i, PID: pids[i], Code: 1, Time: time.Now(), Err: err}
	}
	result.Failures = result.Exits
	return result, nil
}
