package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// sizing is how many nodes the job is wanted to have, as this node has heard last.
type sizing struct {
	onSpare func()
	spare   bool // this node has waited as one since its last round; Next's

	mu      sync.Mutex // guards the rest
	wish    server.Wish
	waiting []chan *server.Message // of those who wait for word of the rendezvous; each has room
}

// heard takes what the rendezvous says of the wish.
func (n *Node) heard(m *server.Message) {
	z := &n.sizing
	z.mu.Lock()
	defer z.mu.Unlock()
	if m.Wish != nil && m.Wish.Nodes > 0 && m.Wish.Serial >= z.wish.Serial {
		if m.Wish.Nodes != z.wish.Nodes {
			n.log.Info("the job is wanted to have another number of hosts", "run_id", n.cfg.RunID, "want", m.Wish.Nodes)
		}
		z.wish = *m.Wish
	}
	for _, w := range z.waiting {
		select {
		case w <- m:
		default: // it has heard enough
		}
	}
}

// greeting is the wish as a Hello has it; nil: none.
func (z *sizing) greeting() *server.Wish {
	z.mu.Lock()
	defer z.mu.Unlock()
	if w := z.wish; w.Nodes > 0 {
		return &w
	}
	return nil
}

// Wanted implements rendezvous.Scaler.
func (n *Node) Wanted() int {
	n.sizing.mu.Lock()
	defer n.sizing.mu.Unlock()
	return n.sizing.wish.Nodes
}

// OnSpare implements rendezvous.Scaler.
func (n *Node) OnSpare(f func()) { n.sizing.onSpare = f }

// mostWords is how many words of the rendezvous may come before the answer to one request.
const mostWords = 64

// errNoScale is the error of Scale where no muster server holds the rendezvous.
var errNoScale = errors.New("nobody can be asked for another number of hosts: PyTorch holds the rendezvous, or it cannot be reached at the moment")

// Scale implements rendezvous.Scaler.
func (n *Node) Scale(ctx context.Context, nodes int) error {
	least, most := n.cfg.MinNodes, n.cfg.MaxNodes
	switch {
	case least == most:
		return fmt.Errorf("the job has %d hosts, no more and no fewer; start it with --nnodes MIN:MAX to scale it", most)
	case nodes < least || nodes > most:
		return fmt.Errorf("the job has %d to %d hosts (--nnodes), and %d are asked for", least, most, nodes)
	}
	n.mu.Lock()
	s, ok := n.protocol.(*session)
	n.mu.Unlock()
	if !ok {
		return errNoScale
	}
	z, said := &n.sizing, make(chan *server.Message, mostWords)
	z.mu.Lock()
	z.waiting = append(z.waiting, said)
	z.mu.Unlock()
	defer func() {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.waiting = slices.DeleteFunc(z.waiting, func(w chan *server.Message) bool { return w == said })
	}()
	if err := s.conn.Send(&server.Message{Type: server.Size, Wish: &server.Wish{Nodes: nodes}}); err != nil {
		return errNoScale
	}
	for {
		var m *server.Message
		select {
		case m = <-said:
		case <-s.conn.Done():
			return errNoScale
		case <-ctx.Done():
			select {
			case m = <-said: // after a time in which this process did not run
			default:
				return fmt.Errorf("the rendezvous does not answer: %w", context.Cause(ctx))
			}
		}
		switch {
		case m.Error != "":
			return errors.New(m.Error)
		case m.Wish != nil && m.Wish.Nodes == nodes:
			return nil
		}
	}
}

var _ rendezvous.Scaler = (*Node)(nil)
