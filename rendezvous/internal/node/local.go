package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/tcpstore"
)

// storeName is what a muster server calls the workers' stores of its rounds.
const storeName = "store"

// loopback is where the workers of a host find a local store.
const loopback = "127.0.0.1"

var errTorchStore = errors.New(
	"an agent of torchrun takes part, whose workers cannot use the store of Spec.Live; run muster on all hosts, or leave Spec.Live out")

// A localStore is the workers' store of a live job: a server at the loopback address that
// keeps its port as long as the node lives. It is a relay of a store beside the rendezvous,
// which is another one in each round. In a job on one host that is shared.
type localStore struct {
	server  *tcpstore.Server
	shared  *tcpstore.Shared
	serving sync.WaitGroup // shared
}

// listen makes sure that the server is there.
func (l *localStore) listen(n *Node) (port int, err error) {
	if l.server == nil {
		cfg := n.oneHost(loopback, 0)
		cfg.Addr, cfg.Allow, cfg.Relay = net.JoinHostPort(loopback, "0"), nil, true
		if l.server, err = tcpstore.Listen(cfg); err != nil {
			return 0, n.connectionError(fmt.Errorf("start the workers' store of this host: %w", err))
		}
	}
	return l.server.Port(), nil
}

func (l *localStore) close() (err error) {
	if l.server != nil {
		err = l.server.Close()
	}
	if l.shared != nil {
		l.shared.End()
	}
	l.serving.Wait()
	return err
}

// openLocalStore leads this node's workers to the store of a round.
func (n *Node) openLocalStore(ctx context.Context, p protocol, r *round) (err error) {
	s, held := p.(*session)
	if r.torch {
		return n.connectionError(errTorchStore)
	}
	r.addr = loopback
	if r.port, err = n.local.listen(n); err != nil {
		return err
	}
	if !held {
		if n.local.shared != nil {
			n.local.shared.End()
		}
		shared := tcpstore.NewShared()
		n.local.shared = shared
		err = n.local.server.Follow(ctx, func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			n.local.serving.Go(func() { _ = shared.Serve(far) })
			return near, nil
		})
		return errors.Join(err, publish(ctx, r))
	}
	soon, cancel := context.WithTimeout(ctx, n.cfg.Settings.Heartbeat)
	defer cancel()
	err = n.local.server.Follow(soon, func(ctx context.Context) (net.Conn, error) {
		conn, err := s.dial(ctx, storeName)
		if err == nil {
			err = server.AskStore(ctx, conn, n.cfg.RunID, r.number)
		}
		if err != nil && !errors.Is(err, store.ErrClosed) {
			err = fmt.Errorf("%s: %w", n.endpoint, err)
		}
		return conn, err
	})
	_, refused := errors.AsType[*server.RefusedError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refused, errors.Is(err, tcpstore.ErrNoSession):
		return n.connectionError(err)
	}
	return nil // if there is no connection yet, there will be one, or the round is over
}
