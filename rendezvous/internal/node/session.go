package node

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// session is the protocol with a rendezvous that a muster server holds: this agent's,
// another's, or that of a `muster store`. The server says what happens, so that nobody
// has to look. What its messages mean to this node is decided by part; meet, listen and watch do
// what that says. They receive, one after the other, and so does end; anybody may send.
type session struct {
	n    *Node
	conn *server.Client
	part server.Participation
	kept []*server.Message // said before watch was there to hear it
	dial dialer
}

// A dialer makes another connection to the server of a session, for the protocol of a name.
type dialer func(ctx context.Context, name string) (net.Conn, error)

// mostKept bounds session.kept. One change is enough for the agent to act.
const mostKept = 64

// greet begins a session, which ends conn; dial leads to the same server.
func (n *Node) greet(ctx context.Context, conn net.Conn, dial dialer) (*session, error) {
	cfg, settings := &n.cfg, &n.cfg.Settings
	s := &session{n: n, dial: dial}
	// The first ring may come before s.conn is set: it uses dial, and nothing else of s that changes.
	c, err := server.Greet(ctx, conn, &server.Message{
		Host: cfg.Host,
		Greeting: server.Greeting{
			RunID: cfg.RunID, Node: &n.link.me, MinNodes: cfg.MinNodes, MaxNodes: cfg.MaxNodes,
			LastCall: settings.LastCall, KeepAlive: settings.KeepAliveInterval,
			KeepAliveLimit: settings.KeepAliveLimit(), Role: cfg.Role,
			LocalWorldSize: cfg.LocalWorldSize, Live: cfg.Live, Last: n.last, Spare: n.spare, Restarts: n.used,
			Calls: n.calls != nil, Answers: n.answers.kinds(),
		},
	}, s.ring)
	if err != nil {
		return nil, err
	}
	if c.Holder != "" && c.Holder != cfg.RunID {
		n.warnOfHolder(text.Line(c.Holder, 100))
	}
	s.conn = c
	return s, nil
}

func (n *Node) warnOfHolder(runID string) {
	n.log.Warn("the agent of another job holds the rendezvous at this endpoint, and both jobs end with it; give each job an endpoint of its own",
		"run_id", n.cfg.RunID, "endpoint", n.endpoint.String(), "holder", runID)
}

func (s *session) offset() time.Duration { return s.conn.Offset() }
func (s *session) close()                { s.conn.Close() }

func (s *session) join() error {
	s.kept = nil
	s.part.Join()
	if err := s.conn.Join(); err != nil {
		return s.n.endpoint.lost(err)
	}
	return nil
}

// meet joins and waits until this node has its rank and knows where the workers meet.
func (s *session) meet(ctx context.Context, deadline time.Time) (*round, error) {
	n := s.n
	if err := s.join(); err != nil {
		return nil, err
	}
	var last rendezvous.Waiting
	ask := time.Now().Add(waitingInterval)
	for {
		m, err := s.hear(ctx, deadline, &ask, &last)
		if err != nil {
			return nil, err
		}
		if m.Type == server.Status && m.Waiting != nil && s.part.Round == nil {
			last = *m.Waiting
			s.tell(&last, deadline)
		}
		switch step := s.part.Meet(m); step {
		case server.BeSpare:
			deadline = time.Time{}
			n.log.Info("the job has all the hosts that it may have; this one waits as a spare", "run_id", n.cfg.RunID)
			if m.Host != "" {
				n.log.Warn("rendezvous: hosts have several agents in the round, each of which counts as a host; start one on each; with srun, one task for each host",
					"run_id", n.cfg.RunID, "hosts", text.Line(m.Host, 1000))
			}
			n.spare = true
			n.onSpare()
		case server.BeNoSpare:
			deadline = time.Now().Add(n.cfg.Settings.Join)
		case server.EndUnneeded:
			return nil, ended(rendezvous.ErrRedundant, m.Outcome)
		case server.EndClosed:
			return nil, ended(rendezvous.ErrClosed, m.Outcome)
		case server.OpenStore, server.FindStore:
			r := s.round()
			err := s.workersStore(ctx, r, deadline)
			if !errors.Is(err, errStartOver) {
				return r, err
			}
			if err := s.join(); err != nil {
				return nil, err
			}
		case server.Begin:
			r := s.round()
			n.yieldWorkersStore(r)
			if r.addr, r.port = m.Addr, m.Port; n.link.shared {
				r.addr, r.port = n.link.addr, n.link.port // as this host was told: rank 0 may call itself localhost
			}
			return r, nil
		case server.JoinAgain:
			if err := s.join(); err != nil {
				return nil, err
			}
		}
	}
}

// ended is err with what is known of how the job ended.
func ended(err error, o *rendezvous.Outcome) error {
	if o == nil {
		return err
	}
	return &rendezvous.EndedError{Outcome: *o, Err: err}
}

// hear returns the next message. It asks for whom the rendezvous waits, at ask and then every few
// seconds. After the deadline it leaves, with an error that says for whom it has waited last.
func (s *session) hear(ctx context.Context, deadline time.Time, ask *time.Time,
	last *rendezvous.Waiting) (*server.Message, error) {
	n := s.n
	for {
		until, cancel := context.WithDeadline(ctx, earlier(deadline, *ask))
		m, err := s.conn.Recv(until)
		cancel()
		now := time.Now()
		switch {
		case err == nil:
			return m, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, n.endpoint.lost(err)
		case !deadline.IsZero() && !now.Before(deadline):
			expired := &rendezvous.TimeoutError{RunID: n.cfg.RunID, Phase: "join", After: n.cfg.Settings.Join, Waiting: *last}
			if last.MaxNodes == 0 {
				expired.Waiting.Note = n.endpoint.lacking()
			}
			return nil, errors.Join(expired, s.end(ctx, false))
		}
		*ask = now.Add(waitingInterval)
		if err := s.conn.Send(&server.Message{Type: server.Status}); err != nil {
			return nil, n.endpoint.lost(err)
		}
	}
}

// tell says for whom this node waits, and until when.
func (s *session) tell(w *rendezvous.Waiting, deadline time.Time) {
	if w.Left = time.Until(deadline); deadline.IsZero() {
		w.Left, w.Note = 0, "this host is a spare: it takes the place of a host that is lost"
	}
	s.n.cfg.OnWaiting(*w)
}

// round is the one in which this node has a rank.
func (s *session) round() *round {
	m := s.part.Round
	return &round{
		number: m.Round, rank: m.Rank, size: m.WorldSize, first: m.First, restarts: m.Used, ranks: m.Ranks, torch: m.Torch,
		reached: m.Addr, hosts: s.part.Hosts,
		store: s.n.roundStore(m.Round), jobStore: s.n.jobStore(m.Job),
	}
}

// workersStore makes the round's workers' store, as rank 0, and says where it is; or it finds
// the one that a rank 0 of PyTorch's has published.
func (s *session) workersStore(ctx context.Context, r *round, deadline time.Time) error {
	if s.n.cfg.Live && r.torch {
		return errTorchStore
	}
	if r.rank != 0 {
		return s.n.findWorkersStoreUnless(ctx, r, deadline, s.listen)
	}
	if err := s.n.openWorkersStore(ctx, r); err != nil {
		return err
	}
	if err := s.conn.Send(&server.Message{Type: server.Master, Round: r.number, Addr: r.addr, Port: r.port}); err != nil {
		return s.n.endpoint.lost(err)
	}
	return nil
}

// listen returns when a round that is to begin cannot: its rank 0 is gone, or this
// node is not a part of it any more. What else happens to the round is kept for watch.
func (s *session) listen(ctx context.Context) error {
	for {
		m, err := s.conn.Recv(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return s.n.endpoint.lost(err)
		}
		change, concerned := s.part.News(m)
		switch {
		case change.Kind == rendezvous.Closed:
			return rendezvous.ErrClosed
		case change.Kind == rendezvous.Evicted || concerned && change.Rank == 0:
			return errStartOver
		case concerned && len(s.kept) < mostKept:
			s.kept = append(s.kept, m)
		}
	}
}

// next receives what was kept, and then what comes.
func (s *session) next(ctx context.Context) (*server.Message, error) {
	if len(s.kept) == 0 {
		return s.conn.Recv(ctx)
	}
	m := s.kept[0]
	s.kept = s.kept[1:]
	return m, nil
}

// earlier returns the earlier of two times, of which the first may be unset.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// watch delivers what the server says of the round until ctx ends.
func (s *session) watch(ctx context.Context, _ int, deliver func(rendezvous.Change) bool) {
	for {
		m, err := s.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if deliver(s.n.endpoint.loss(err)) {
				s.n.link.hangUp() // calls would wait for a host that does not answer, or find another server there
			}
			return
		}
		if change, concerned := s.part.News(m); concerned && !deliver(change) {
			return
		}
	}
}

// end makes this node leave, or closes the rendezvous for all.
func (s *session) end(ctx context.Context, all bool) error {
	say, answer := server.Leave, server.Left
	if all {
		say, answer = server.Close, server.Closed
	}
	if err := s.conn.Send(&server.Message{Type: say}); err != nil {
		return nil // the session has ended, which is as good
	}
	for {
		m, err := s.conn.Recv(ctx)
		switch {
		case err == nil && m.Type != answer:
			continue
		case err != nil && ctx.Err() != nil:
			return err
		}
		return nil
	}
}
