package node

import (
	"context"
	"time"

	"github.com/muster-run/muster/rendezvous"
)

// constant is the protocol of a job whose nodes and ranks are given. There is nobody to
// ask, and nobody who would tell what becomes of the others.
type constant struct {
	next  func(ctx context.Context, number int) (*round, error)
	round int // the next one
}

func (c *constant) meet(ctx context.Context, _ time.Time) (*round, error) {
	r, err := c.next(ctx, c.round)
	if err != nil {
		return nil, err
	}
	r.constant = true
	c.round++
	return r, nil
}

func (c *constant) watch(context.Context, int, func(rendezvous.Change) bool) {}
func (c *constant) end(context.Context, bool) error                          { return nil }
func (c *constant) close()                                                   {}
func (c *constant) offset() time.Duration                                    { return 0 }
