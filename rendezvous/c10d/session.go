package c10d

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/room"
)

// statusInterval is how often a node that waits asks for whom.
const statusInterval = 3 * time.Second

// held is a rendezvous that a server of ours holds: this agent's, another's, or
// that of a `muster store`. It says what happens, so that nobody has to look.
type held struct {
	h       *many
	session *room.Client
	kept    []*room.Message // said before watch was there to hear it
	evicted bool            // the room has dropped this node, and ended the session
}

// mostKept bounds held.kept. One change is enough for the agent to act.
const mostKept = 64

func (c *held) offset() time.Duration { return c.session.Offset() }

// meet joins and waits until this node has its place and knows where the workers
// meet.
func (c *held) meet(ctx context.Context, deadline time.Time) (p place, addr string, port int, err error) {
	h, session := c.h, c.session
	c.kept = nil
	if err := session.Join(); err != nil {
		return p, "", 0, h.lost(err)
	}
	expired := &rendezvous.TimeoutError{RunID: h.cfg.RunID, Phase: "join", After: h.cfg.Settings.Join}
	var last rendezvous.Waiting
	var hosts []netip.Prefix
	placed := false
	ask := time.Now().Add(statusInterval)
	for {
		m, err := recv(ctx, session, earlier(deadline, ask))
		switch now := time.Now(); {
		case err == nil:
		case ctx.Err() != nil:
			return p, "", 0, context.Cause(ctx)
		case !errors.Is(err, context.DeadlineExceeded):
			return p, "", 0, h.lost(err)
		case !deadline.IsZero() && !now.Before(deadline):
			if expired.Waiting = last; last.MaxNodes == 0 {
				expired.Waiting.Note = h.cfg.lacking()
			}
			return p, "", 0, errors.Join(expired, c.end(ctx, false))
		default:
			ask = now.Add(statusInterval)
			if err := session.Send(&room.Message{Type: room.Status}); err != nil {
				return p, "", 0, h.lost(err)
			}
			continue
		}
		switch m.Type {
		case room.Status:
			if w := m.Waiting; w != nil && !placed {
				if last = *w; !deadline.IsZero() {
					last.Left = time.Until(deadline)
				} else {
					last.Note = fmt.Sprintf("this host is a spare: it takes the place of one of the job's %d hosts that is lost", w.MaxNodes)
				}
				h.cfg.tellWaiting(last)
			}
		case room.Spare:
			deadline = time.Time{}
			if m.Redundant {
				h.log.Info("the job has all the hosts that it may have; this one waits as a spare", "run_id", h.cfg.RunID)
			} else {
				deadline = time.Now().Add(h.cfg.Settings.Join)
			}
		case room.Closed:
			if m.Redundant {
				return p, "", 0, rendezvous.ErrRedundant
			}
			return p, "", 0, rendezvous.ErrClosed
		case room.Round:
			p = place{m.Round, m.Rank, m.WorldSize, m.Job, m.Ranks, m.Foreign, m.Addr, nil}
			if len(hosts) == m.NumHosts {
				p.hosts = hosts
			}
			hosts = nil
			if placed = true; p.rank != 0 && !m.Published {
				continue // Master follows
			}
			addr, port, err := c.meetingPoint(ctx, p, deadline)
			if !errors.Is(err, errStartOver) {
				return p, addr, port, err
			}
			placed, c.kept = false, nil
			if err := session.Join(); err != nil {
				return p, "", 0, h.lost(err)
			}
		case room.Hosts:
			hosts = append(hosts, m.Hosts...)
		case room.Master:
			if placed && m.Round == p.round {
				h.yieldMaster(p)
				return p, m.Addr, m.Port, nil
			}
		case room.Change:
			c.evicted = c.evicted || m.Kind == rendezvous.Evicted
			// The round has broken up before it began.
			if placed && (m.Round == p.round || m.Kind == rendezvous.Evicted) {
				placed = false
				if err := session.Join(); err != nil {
					return p, "", 0, h.lost(err)
				}
			}
		}
	}
}

// meetingPoint makes the place where the workers meet, as rank 0, or finds the
// one that a foreign rank 0 has published.
func (c *held) meetingPoint(ctx context.Context, p place, deadline time.Time) (addr string, port int, err error) {
	h, session := c.h, c.session
	if p.rank != 0 {
		return h.findMasterUnless(ctx, p, deadline, func(ctx context.Context) error { return c.listen(ctx, p.round) })
	}
	if addr, port, err = h.openMaster(ctx, p); err != nil {
		return "", 0, err
	}
	err = session.Send(&room.Message{Type: room.Master, Round: p.round, Addr: addr, Port: port})
	if err != nil {
		return "", 0, h.lost(err)
	}
	return addr, port, nil
}

// listen returns when a round that is to begin cannot: its rank 0 is gone, or this
// node is no part of it any more. What else happens to the round is kept for watch.
func (c *held) listen(ctx context.Context, round int) error {
	for {
		m, err := c.session.Recv(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return c.h.lost(err)
		case m.Type == room.Closed:
			return rendezvous.ErrClosed
		case m.Type != room.Change:
		case m.Kind == rendezvous.Evicted || m.Round == round && m.Rank == 0:
			c.evicted = c.evicted || m.Kind == rendezvous.Evicted
			return errStartOver
		case len(c.kept) < mostKept:
			c.kept = append(c.kept, m)
		}
	}
}

// next is the session's Recv, after what was kept.
func (c *held) next(ctx context.Context) (*room.Message, error) {
	if len(c.kept) == 0 {
		return c.session.Recv(ctx)
	}
	m := c.kept[0]
	c.kept = c.kept[1:]
	return m, nil
}

// earlier returns the earlier of two times, of which the first may be unset.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// recv is Recv until a time.
func recv(ctx context.Context, session *room.Client, until time.Time) (*room.Message, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	return session.Recv(ctx)
}

// watch delivers what the room says of a round until ctx ends.
func (c *held) watch(ctx context.Context, round int, deliver func(rendezvous.Change) bool) {
	for {
		m, err := c.next(ctx)
		if ctx.Err() != nil {
			return
		}
		change := rendezvous.Change{Rank: -1}
		switch {
		case err != nil:
			change.Kind, change.Err = rendezvous.Disconnected, c.h.lost(err)
		case m.Type == room.Closed:
			change.Kind = rendezvous.Closed
		case m.Type == room.Change && (m.Round == round || m.Kind == rendezvous.Evicted):
			change.Kind, change.Node, change.Rank = m.Kind, m.Host, m.Rank
			c.evicted = c.evicted || m.Kind == rendezvous.Evicted
		default:
			continue
		}
		if !deliver(change) || err != nil {
			return
		}
	}
}

// end makes this node leave, or closes the rendezvous for all.
func (c *held) end(ctx context.Context, all bool) error {
	say, answer := room.Leave, room.Left
	if all {
		say, answer = room.Close, room.Closed
	}
	if err := c.session.Send(&room.Message{Type: say}); err != nil {
		return nil // the session has ended, which is as good
	}
	for {
		m, err := c.session.Recv(ctx)
		switch {
		case err == nil && m.Type != answer:
			continue
		case err != nil && ctx.Err() != nil:
			return err
		}
		return nil
	}
}

func (c *held) close() { c.session.Close() }
