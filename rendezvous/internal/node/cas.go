package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-run/muster/internal/wait/sleep"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// How often the state is looked at while this node waits for others, and while
// its workers run.
const (
	lookJoining = 200 * time.Millisecond
	lookRunning = 500 * time.Millisecond
)

// cas is the protocol with a store that only stores, PyTorch's. The state of the
// rendezvous is one value there, which all agents change by compare-and-set and look at
// again and again. At any time one goroutine uses it: the one that calls the protocol's
// methods, or look while that one waits for rank 0.
// Source: C10dRendezvousBackend, _BackendRendezvousStateHolder.
type cas struct {
	n        *Node
	key      string
	rules    state.Rules
	limit    time.Duration
	observer state.Observer

	token []byte       // the value as read last
	state *state.State // what it says, without the dead; nil: not read yet
	late  state.Set    // who was silent for most of limit, since the last compare: if gone, then lost
	gone  bool         // the store could not be read
}

func newCAS(ctx context.Context, n *Node) (*cas, error) {
	settings := &n.cfg.Settings
	c := &cas{
		n: n, late: state.Set{}, key: stateKey(n.cfg.RunID),
		rules: state.Rules{MinNodes: n.cfg.MinNodes, MaxNodes: n.cfg.MaxNodes, LastCall: settings.LastCall,
			KeepAliveInterval: settings.KeepAliveInterval},
		limit: settings.KeepAliveLimit(),
	}
	// Only the first agent creates the key. From now on it exists, so read does not block.
	_, err := n.link.agents.CompareAndSet(ctx, c.key, nil, []byte(pickle.Sentinel))
	return c, err
}

// stateKey is where the state of a run is.
func stateKey(runID string) string { return "torch.rendezvous." + runID }

func (c *cas) offset() time.Duration { return 0 }
func (c *cas) close()                {}

// read reads the state.
func (c *cas) read(ctx context.Context) error {
	text, err := c.n.link.agents.Get(ctx, c.key)
	if err != nil {
		c.gone = ctx.Err() == nil
		return c.n.endpoint.lost(err)
	}
	return c.accept(text)
}

// accept takes over a value of the key.
func (c *cas) accept(text []byte) error {
	st, err := pickle.DecodeText(text)
	if err != nil {
		if _, old := errors.AsType[*pickle.OldStateError](err); old {
			err = fmt.Errorf("an agent of PyTorch 1.13 or older takes part, which no newer agent can: %w", err)
		}
		return c.n.connectionError(fmt.Errorf("the rendezvous state at key %q cannot be read: %w", c.key, err))
	}
	if st == nil {
		st = state.NewState()
	}
	before := time.Time{}
	if c.state != nil {
		before = c.state.Deadline
	}
	now := time.Now()
	me := c.n.link.me
	// By now another agent may have found out, and dropped them.
	for _, n := range c.observer.Silent(now, c.limit/3*2) {
		c.late.Add(n)
	}
	c.observer.See(now, st, func(n state.Node) bool { return n == me })
	silent := c.observer.Silent(now, c.limit/3*2)
	maps.DeleteFunc(c.late, func(n state.Node, _ struct{}) bool {
		_, there := st.LastHeartbeats[n]
		return there && !slices.Contains(silent, n) // it has been heard of again
	})
	c.observer.Fix(now, st, before, c.rules.LastCall)
	st.Drop(c.rules, c.observer.Silent(now, c.limit)...)
	c.token, c.state = text, st
	return nil
}

// act performs an action by compare-and-set and continues from what then is stored. It is no error that
// another agent was faster: what is stored is that one's state then, and perform decides anew from it.
func (c *cas) act(ctx context.Context, a state.Action) error {
	next := c.state.Clone()
	next.Do(a, c.n.link.me, c.rules, c.observer.Clock(time.Now()))
	want := pickle.EncodeText(next)
	got, err := c.n.link.agents.CompareAndSet(ctx, c.key, c.token, want)
	if err != nil {
		return c.n.endpoint.lost(err)
	}
	if err := c.accept(got); err != nil {
		return err
	}
	if backoff := c.n.cfg.Settings.CASBackoffMax; backoff > 0 && string(got) != string(want) {
		return sleep.For(ctx, rand.N(backoff))
	}
	return nil
}

// perform decides and acts until the operation is over.
func (c *cas) perform(ctx context.Context, decide func(now time.Time) state.Action,
	waiting func()) (state.Action, error) {
	if err := c.read(ctx); err != nil {
		return 0, err
	}
	for {
		switch a := decide(c.observer.Clock(time.Now())); a {
		case state.Finish, state.FailClosed, state.FailRedundant, state.FailTimeout:
			return a, nil
		case state.Sync:
			waiting()
			if err := sleep.For(ctx, lookJoining); err != nil {
				return 0, err
			}
			if err := c.read(ctx); err != nil {
				return 0, err
			}
		default:
			if err := c.act(ctx, a); err != nil {
				return 0, err
			}
		}
	}
}

// once is perform for what does not wait.
func (c *cas) once(ctx context.Context, decide func(now time.Time) state.Action) error {
	_, err := c.perform(ctx, decide, func() {})
	return err
}

func (c *cas) meet(ctx context.Context, deadline time.Time) (*round, error) {
	for {
		r, err := c.join(ctx, &deadline)
		if err != nil {
			return nil, err
		}
		if !c.contiguous() {
			// A node of the round has been lost before this one saw that it was
			// complete: the ranks do not fit any more.
			continue
		}
		if r.rank == 0 {
			return r, c.n.openWorkersStore(ctx, r)
		}
		err = c.n.findWorkersStoreUnless(ctx, r, deadline, func(ctx context.Context) error { return c.look(ctx, r.number) })
		if !errors.Is(err, errStartOver) {
			return r, err
		}
	}
}

// join leaves the round that the node is in and waits for a place in the next.
func (c *cas) join(ctx context.Context, deadline *time.Time) (*round, error) {
	me := c.n.link.me
	if err := c.once(ctx, func(time.Time) state.Action { return c.state.Exit(me) }); err != nil {
		return nil, err
	}
	var last rendezvous.Waiting
	told := time.Now()
	end, err := c.perform(ctx, func(now time.Time) state.Action {
		a := c.state.Join(me, c.rules, now, c.observer.Clock(*deadline))
		if a == state.RemoveFromRedundancyList {
			*deadline = time.Now().Add(c.n.cfg.Settings.Join)
		}
		return a
	}, func() {
		last = c.waiting(*deadline)
		if time.Since(told) >= waitingInterval {
			told = time.Now()
			c.n.cfg.OnWaiting(last)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case end == state.FailClosed:
		return nil, rendezvous.ErrClosed
	case end == state.FailRedundant:
		return nil, ended(rendezvous.ErrRedundant, c.outcome(ctx))
	case end == state.FailTimeout:
		return nil, &rendezvous.TimeoutError{RunID: c.n.cfg.RunID, Phase: "join", After: c.n.cfg.Settings.Join, Waiting: last}
	}
	number := c.state.Round
	return &round{
		number: number, rank: c.state.Participants[me], size: len(c.state.Participants), torch: true,
		store: c.n.roundStore(number), jobStore: c.n.jobStore(0),
	}, nil
}

// outcomeKey is in the job's store: how the job ends, for its spares.
const outcomeKey = "outcome"

// say tells the spares how the job ends, unless another node has.
func (c *cas) say(o *rendezvous.Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), c.n.cfg.Settings.Heartbeat)
	defer cancel()
	if text, err := json.Marshal(o); err == nil {
		_, _ = c.n.jobStore(0).CompareAndSet(ctx, outcomeKey, nil, text)
	}
}

// outcome is what say has told; nil: nothing.
func (c *cas) outcome(ctx context.Context) (o *rendezvous.Outcome) {
	s := c.n.jobStore(0)
	if there, err := s.Check(ctx, outcomeKey); err == nil && there {
		if text, err := s.Get(ctx, outcomeKey); err != nil || json.Unmarshal(text, &o) != nil {
			return nil
		}
	}
	return o
}

// contiguous reports whether the round has the ranks from 0 to its size.
func (c *cas) contiguous() bool {
	for _, rank := range c.state.Participants {
		if rank >= len(c.state.Participants) {
			return false
		}
	}
	return true
}

// look keeps the node alive while it waits for something else than the state, and
// returns when a round that is to begin cannot: its rank 0 is gone.
func (c *cas) look(ctx context.Context, round int) error {
	for sleep.For(ctx, lookRunning) == nil {
		c.keepAlive(ctx)
		if _, there := rank0(c.state); c.state.Closed || !c.state.Complete || c.state.Round != round || !there {
			return errStartOver
		}
	}
	return nil
}

func (c *cas) keepAlive(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, c.n.cfg.Settings.Heartbeat)
	defer cancel()
	err := c.once(timed, func(now time.Time) state.Action { return c.state.Stay(c.n.link.me, c.rules, now) })
	if err != nil && ctx.Err() == nil {
		c.n.log.Warn("rendezvous: cannot tell the others that this host is alive", "run_id", c.n.cfg.RunID, "error", err)
	}
}

// waiting says how far the next round is.
func (c *cas) waiting(deadline time.Time) rendezvous.Waiting {
	w := c.state.Waiting(c.observer.Clock(time.Now()), c.rules, nil, func(n state.Node) string { return n.Addr })
	w.Left = time.Until(deadline)
	return w
}

// watch looks at the state again and again, which also keeps the node alive. Nodes
// may wait since before the round was complete. That they do is told once, and not
// before all others have seen the round as it is, or they would count fewer nodes.
func (c *cas) watch(ctx context.Context, round int, deliver func(rendezvous.Change) bool) {
	before, quiet, called := c.state, time.Now().Add(server.TorchLook), false
	for sleep.For(ctx, lookRunning) == nil {
		err := c.once(ctx, func(now time.Time) state.Action { return c.state.Stay(c.n.link.me, c.rules, now) })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if deliver(rendezvous.Change{Kind: rendezvous.Disconnected, Rank: -1, Err: err}) {
				c.n.link.hangUp() // calls would wait for a host that does not answer
			}
			return
		}
		for _, change := range c.compare(before, round) {
			if !deliver(change) {
				return
			}
		}
		before = c.state
		if called || before.Closed || len(before.WaitList) == 0 || time.Now().Before(quiet) {
			continue
		}
		called = true
		waits := slices.MinFunc(slices.Collect(maps.Keys(before.WaitList)), state.Node.Compare)
		if !deliver(rendezvous.Change{Kind: rendezvous.NodesWaiting, Node: waits.Addr, Rank: -1}) {
			return
		}
	}
}

// compare says what has become of a round's participants.
func (c *cas) compare(before *state.State, round int) []rendezvous.Change {
	now := c.state
	if now.Closed {
		if before.Closed {
			return nil
		}
		return []rendezvous.Change{{Kind: rendezvous.Closed, Rank: -1}}
	}
	var changes []rendezvous.Change
	me := c.n.link.me
	_, was := before.Participants[me]
	if _, is := now.Participants[me]; was && !is || now.Round != round && before.Round == round {
		return []rendezvous.Change{{Kind: rendezvous.Evicted, Rank: -1}}
	}
	late := c.late
	c.late = state.Set{}
	for n, rank := range before.Participants {
		if _, stays := now.Participants[n]; stays || now.WaitList.Has(n) {
			continue
		}
		kind := rendezvous.NodeLeft
		if late.Has(n) {
			kind = rendezvous.NodeLost
		}
		changes = append(changes, rendezvous.Change{Kind: kind, Node: n.Addr, Rank: rank})
	}
	// A loss makes others leave, for the next round, and is the reason to be told.
	slices.SortFunc(changes, func(a, b rendezvous.Change) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Rank, b.Rank))
	})
	return changes
}

func (c *cas) end(ctx context.Context, all bool) error {
	if c.gone {
		return nil // there is nothing left to leave, which has been said
	}
	ctx, cancel := context.WithTimeout(ctx, c.n.cfg.Settings.Close)
	defer cancel()
	if all {
		return c.once(ctx, func(time.Time) state.Action {
			end := c.state.End()
			if end != state.Finish && len(c.state.WaitList) == 0 {
				// While workers run PyTorch's agents only look for nodes that wait.
				// They then stop their workers and find that there is no next round.
				c.state.WaitList.Add(c.n.link.me)
			}
			return end
		})
	}
	return c.once(ctx, func(time.Time) state.Action {
		if c.state.WaitList.Has(c.n.link.me) {
			return state.RemoveFromWaitList
		}
		return c.state.Exit(c.n.link.me)
	})
}
