package tcpstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"

	"github.com/muster-run/muster/store/internal/kv"
)

// A Shared is a store for the clients of other servers, its relays (Server.Follow). It does
// not listen: the owner of a connection to a relay gives it to Serve.
type Shared struct {
	server *Server // for its data and bounds; it does not listen

	// Guarded by the map's lock.
	clients map[*sharedClient]struct{} // those that wait
	over    bool
}

// NewShared returns an empty store. It holds nothing that would have to be closed.
func NewShared() *Shared {
	s := &Server{m: kv.New()} // arrivals stays nil: a conn that has not joined it returns from its methods first
	for i := range places {
		s.places[i] = make(chan struct{}, places[i].most)
	}
	return &Shared{server: s, clients: map[*sharedClient]struct{}{}}
}

// A sharedClient is a relay's client.
type sharedClient struct {
	s      *Shared
	out    *outbox
	number uint32
	waiter kv.Waiter
}

// Fire implements kv.Notifier. The answer is in the outbox before the lock is given up, and so before that of
// any later request of the client, such as a CANCEL_WAIT. Nothing is left for Deliver.
func (c *sharedClient) Fire() bool {
	delete(c.s.clients, c)
	c.out.answer(c.number, kindWait, stopWaiting)
	return false
}

// Deliver implements kv.Notifier.
func (c *sharedClient) Deliver() {}

// End removes all keys and queues, and ends what clients wait for with an error. From then on
// relays are told that the store has ended. It may be called again.
func (s *Shared) End() {
	m := s.server.m
	m.Lock()
	defer m.Unlock()
	s.over = true
	for c := range s.clients {
		m.Cancel(&c.waiter)
		c.out.answer(c.number, kindWait, waitCanceled)
	}
	clear(s.clients)
	m.Clear()
}

// Serve serves a relay until the connection ends, and closes it. The error says what the
// relay did wrong, if it did.
func (s *Shared) Serve(nc net.Conn) error {
	out, clients := newOutbox(), map[uint32]*sharedClient{}
	written := make(chan struct{})
	go func() { defer close(written); out.write(nc) }()
	defer func() {
		nc.Close()
		out.end()
		<-written
		m := s.server.m
		m.Lock()
		defer m.Unlock()
		for _, c := range clients {
			s.drop(c)
		}
	}()
	c := newConn(s.server, nc)
	c.validated.Store(true) // the relay's clients begin as clients do, at the relay
	defer c.unclaim()
	for {
		if err := c.await(4); err != nil {
			return nil
		}
		number := binary.LittleEndian.Uint32(c.buf[c.r:])
		c.r += 4
		client := clients[number]
		if client == nil {
			client = &sharedClient{s: s, out: out, number: number}
			client.waiter.Notifier = client
			clients[number] = client
		}
		if err := c.await(1); err != nil {
			return nil
		}
		if query(c.buf[c.r]) == qGone {
			c.r++
			s.server.m.Lock()
			s.drop(client)
			s.server.m.Unlock()
			delete(clients, number)
			continue
		}
		if err := c.receive(); err != nil {
			return err
		}
		s.perform(c, client)
		c.finish()
		out.awaitRoom()
	}
}

// await reads until the buffer holds n bytes.
func (c *conn) await(n int) error {
	for c.w-c.r < n {
		if err := c.fill(n - (c.w - c.r)); err != nil {
			return err
		}
	}
	return nil
}

// drop forgets what a client waits for. The map is locked.
func (s *Shared) drop(c *sharedClient) {
	s.server.m.Cancel(&c.waiter)
	delete(s.clients, c)
}

// perform does what the request in c asks for.
func (s *Shared) perform(c *conn, client *sharedClient) {
	f, m := &c.frame, s.server.m
	m.Lock()
	defer m.Unlock()
	done, err := true, error(nil)
	switch {
	case s.over && (f.query == qWait || f.query == qBarrier):
		client.out.answer(client.number, kindWait, waitCanceled)
		return
	case s.over:
		if !silent[f.query] {
			client.out.answer(client.number, kindOver)
		}
		return
	case f.query == qWait && !client.waiter.Parked():
		done = m.Wait(&client.waiter, c.list()...)
	case f.query == qBarrier && !client.waiter.Parked():
		done, err = m.Barrier(&client.waiter, text(f.key.of(c.buf[c.r:])), f.num)
	case f.query == qWait || f.query == qBarrier:
		err = errSecondWait
	case f.query == qCancelWait:
		s.drop(client)
		client.out.answer(client.number, kindReply, waitCanceled)
		return
	case f.query == qListKeys:
		err = c.replyKeys(m.Keys(), math.MaxInt)
	default:
		if err = c.locked(f, m); f.query == qQueuePop {
			client.waiter.Popped(text(f.key.of(c.buf[c.r:])))
		}
	}
	switch {
	case err != nil:
		client.out.answer(client.number, kindBad, []byte(err.Error())...)
	case f.query != qWait && f.query != qBarrier:
		if silent[f.query] {
			return
		}
		if n := c.replies.len(); n > maxReply {
			c.replies = batch{}
			client.out.answer(client.number, kindBad, fmt.Appendf(nil, "a reply of %d bytes, at most %d can be sent", n,
				maxReply)...)
			return
		}
		client.out.add(func(b *batch) { b.head(client.number, kindReply, c.replies.len()); b.take(&c.replies) })
	case done:
		client.out.answer(client.number, kindWait, stopWaiting)
	default:
		s.clients[client] = struct{}{}
	}
}
