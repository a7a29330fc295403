package server

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// ServeStore serves one connection of an agent whose workers use a store that is here: that of
// one round, which begins empty and ends when an agent asks for a later round's.
func (s *Server) ServeStore(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	m, err := Read(conn)
	if err != nil || m.Type != Store {
		return
	}
	answer := &Message{Type: Welcome}
	shared, err := s.workersStore(m)
	if err != nil {
		answer = refuse("%v", err)
		answer.Over = errors.Is(err, errOver)
	}
	if _, failed := conn.Write(answer.Append(nil)); failed != nil || err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if err := shared.Serve(conn); err != nil {
		s.log.Warn("rendezvous: an agent's connection for its workers has ended", "remote", conn.RemoteAddr(), "error", err)
	}
}

var errOver = errors.New("the round is over")

func (s *Server) workersStore(m *Message) (shared *tcpstore.Shared, err error) {
	l := s.of(m.RunID)
	if l == nil {
		return nil, errOver
	}
	// In do, so that all agents of a round get one store, and none gets it after its end.
	l.do(func(r *Rendezvous, _ time.Time) {
		switch w := &l.workers; {
		case !r.knows(m):
			err = errors.New("only an agent of the job may ask for the workers' store")
		case w.shared != nil && w.round == m.Round:
			shared = w.shared
		case !r.state.Complete || r.state.Round != m.Round:
			err = errOver
		default:
			l.endWorkers()
			w.round, w.shared = m.Round, tcpstore.NewShared()
			shared = w.shared
		}
	})
	return shared, err
}

// endWorkers ends the workers' store, if there is one. The caller holds mu. The store's own lock may be taken under
// it: that store has no mirror, so nothing that holds its lock comes back here.
func (l *hosted) endWorkers() {
	if l.workers.shared != nil {
		l.workers.shared.End()
		l.workers.shared = nil
	}
}

// AskStore asks on conn, a connection to ServeStore, for the workers' store of a round. The
// error is store.ErrClosed if that round is over.
func AskStore(ctx context.Context, conn net.Conn, runID string, round int) error {
	return connect(ctx, conn, &Message{Type: Store, Greeting: Greeting{RunID: runID, Instance: instance()}, Round: round})
}
