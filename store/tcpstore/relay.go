package tcpstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/muster-run/muster/store"
)

// A relay is what a server has that serves the data of a Shared elsewhere: one connection to
// it, a link, for all of the server's clients. Agents have one for their workers under --live.
//
// The protocol has no way to say that a store is lost, but PyTorch's clients take some
// answers for an error and continue with the connection (failure). What has no such answer waits
// for the next link, if it has not been sent. What changes the store, has been sent, and may or
// may not have been performed when the link breaks ends the client's connection.
//
// The map's lock guards everything in it, in its links, and in each conn's via.
type relay struct {
	link    *link         // nil: there is none at the moment
	changed chan struct{} // closed, and made anew, when there is one
	stop    func()        // ends what the last Follow has begun
}

func newRelay() *relay { return &relay{changed: make(chan struct{}), stop: func() {}} }

// A link is a connection to a Shared.
type link struct {
	s       *Server
	nc      net.Conn
	out     *outbox
	last    uint32
	clients map[uint32]*conn
	due     int  // replies
	retired bool // it ends once none is due
	over    bool // the Shared has ended

	// Counts of requests without a reply: sent, sent before the last asked-for answer, and
	// performed, as answers to later requests say.
	sent, asked, known uint64
}

// A via is what a relay's client has at its link.
type via struct {
	link   *link
	number uint32
	reply  chan relayed // of one: who clears due, with the map locked, sends one
	due    bool
	silent uint64 // link.sent after this client's last
	read   *link  // whose keys the last WAIT or CHECK has found
	waited []byte // the last request, if it was a WAIT
}

// relayed is a reply, or what there is instead.
type relayed struct {
	bytes []byte
	kind  byte
	lost  bool // the link has ended; nobody knows whether the request was performed
}

// How long it takes to dial again after an error, and how long the replies of an earlier store
// may take.
const (
	redialFirst = 10 * time.Millisecond
	redialMost  = time.Second
	retireTime  = time.Second

	// lostTime is for how long a store cannot be reached before that is said: at the end of a job, one
	// agent ends before the other.
	lostTime = time.Second
)

// Follow makes a server with ServerConfig.Relay serve the data of a Shared from now on. What
// clients wait for at the one before ends with an error; their connections stay. dial makes a
// connection to the Shared; it is called again when that ends. Its error store.ErrClosed says that
// there will be none any more.
//
// It returns after the first attempt, with its error, or when ctx is done; later ones follow.
func (s *Server) Follow(ctx context.Context, dial func(ctx context.Context) (net.Conn, error)) error {
	if s.relay == nil {
		return errors.New("tcpstore: Follow is for a server with ServerConfig.Relay")
	}
	life, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		cancel()
		return store.ErrClosed
	}
	s.relay.stop()
	s.relay.stop = cancel
	s.all.Go(func() { s.keep(life, dial, first) })
	s.mu.Unlock()
	select {
	case err := <-first:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keep keeps a link until ctx ends. It sends the error of the first attempt, which has room.
func (s *Server) keep(ctx context.Context, dial func(ctx context.Context) (net.Conn, error), first chan<- error) {
	tried := func(err error) {
		select {
		case first <- err:
		default:
		}
	}
	told := func(err error) {
		s.log.Warn("tcpstore: the store of the workers cannot be reached; trying again", "error", err)
	}
	lost, why := time.Now(), errors.New("it does not answer")
	for pause := redialFirst; ; pause = min(2*pause, redialMost) {
		soFar := why
		slow := time.AfterFunc(lostTime, func() { told(soFar) }) // dial may try for longer
		nc, err := given(dial(ctx))
		slow.Stop()
		if err == nil {
			pause = redialFirst
			l := &link{s: s, nc: nc, out: newOutbox(), clients: map[uint32]*conn{}}
			l.follow(ctx) // before Follow returns: the first request of a worker finds the link
			tried(nil)
			up := time.Now()
			if err = l.run(ctx); time.Since(up) >= lostTime {
				lost = time.Now()
			}
		}
		tried(err)
		why = err
		if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if time.Since(lost) >= lostTime {
			told(err)
		}
	}
}

// follow begins to use a link, unless ctx has ended.
func (l *link) follow(ctx context.Context) {
	r := l.s.relay
	l.s.m.Lock()
	defer l.s.m.Unlock()
	if ctx.Err() == nil {
		r.link = l
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// run uses the link until it ends, and returns why: store.ErrClosed if the Shared has ended.
func (l *link) run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { l.out.write(l.nc) })
	stop := context.AfterFunc(ctx, l.retire)
	err := l.read()
	stop()
	l.nc.Close()
	l.out.end()
	all.Wait()
	l.cut() // last: no reply can come any more that would say what was performed
	if l.over {
		return store.ErrClosed
	}
	return err
}

// retire ends the link after the replies that are due, and at once what clients wait for. The replies are
// waited for since the requests have been sent: a client that got an error could not know whether they
// were performed. A wait changes nothing, and at the old store its key may never come.
func (l *link) retire() {
	l.cancel()
	l.s.m.Lock()
	defer l.s.m.Unlock()
	l.detach()
	l.retired = true
	_ = l.nc.SetReadDeadline(time.Now().Add(retireTime))
	select {
	case <-l.s.done:
		l.nc.Close()
	default:
		if l.due == 0 {
			l.nc.Close()
		}
	}
}

// detach makes sure that no request is sent over the link any more. The map is locked.
func (l *link) detach() {
	if l.s.relay.link == l {
		l.s.relay.link = nil
	}
}

// cancel ends what clients wait for with an error.
func (l *link) cancel() {
	var told []*conn
	l.s.m.Lock()
	l.detach()
	for _, c := range l.clients {
		if c.wait.relay && c.endWait(waitCanceled) {
			told = append(told, c)
		}
	}
	l.s.m.Unlock()
	for _, c := range told {
		c.Deliver()
	}
}

// cut ends all that clients have asked for.
func (l *link) cut() {
	l.cancel()
	l.s.m.Lock()
	defer l.s.m.Unlock()
	for _, c := range l.clients {
		if c.via.silent > l.known && !l.over && !l.retired {
			c.shut() // a reply that never comes cannot say that it may be lost
		}
		c.replied(relayed{lost: true})
	}
	clear(l.clients)
}

// endWait ends a WAIT or BARRIER, and reports whether Deliver is to be called. The map is locked.
func (c *conn) endWait(code byte) bool {
	c.wait.relay = false
	if code == waitCanceled && c.wait.giving {
		return false
	}
	c.wait.code, c.wait.ended = code, code == waitCanceled
	return c.Fire()
}

// replied hands a reply to the client's goroutine, if that waits for one. The map is locked.
func (c *conn) replied(r relayed) {
	if c.via.due {
		c.via.due = false
		c.via.link.due--
		c.via.reply <- r // which has room
	}
}

// read reads replies until the link ends.
func (l *link) read() error {
	in := bufio.NewReaderSize(l.nc, fullBuffer)
	for {
		var head [replyHead]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return noEOF(err)
		}
		number, kind, n := binary.LittleEndian.Uint32(head[:]), head[4], binary.LittleEndian.Uint32(head[5:])
		if n > maxReply || kind > kindBad || kind == kindWait && n != 1 {
			return fmt.Errorf("an answer of kind %d with %d bytes", kind, n)
		}
		reply, err := readAll(in, int64(n))
		if err != nil {
			return err
		}
		if l.receive(number, kind, reply) {
			return nil
		}
	}
}

// receive takes an answer, and reports whether it is the last one.
func (l *link) receive(number uint32, kind byte, reply []byte) (last bool) {
	m := l.s.m
	m.Lock()
	c := l.clients[number]
	if kind == kindOver || kind == kindWait && reply[0] == waitCanceled {
		l.over = true
		l.detach() // before a client is told
	}
	deliver := false
	switch {
	case number == 0:
		l.known = l.asked
		l.askKnown()
	case c == nil:
	case kind == kindWait:
		if c.wait.relay {
			if reply[0] == stopWaiting {
				c.via.read = l
			}
			deliver = c.endWait(reply[0])
		}
	case c.via.due:
		c.replied(relayed{bytes: reply, kind: kind})
	default: // it was a BARRIER
		c.shut()
	}
	last = (l.retired || l.over) && l.due == 0
	m.Unlock()
	if deliver {
		c.Deliver()
	}
	return last
}

// askKnown asks for an answer, which says that all that was sent before has been performed, if
// that is of use and no other one is due. The map is locked.
func (l *link) askKnown() {
	if l.asked == l.known && l.sent > l.asked {
		l.asked = l.sent
		l.send(0, func(b *batch) { b.byte(byte(qNumKeys)) })
	}
}

// hangUp takes a client off its link. The map is locked.
func (c *conn) hangUp() {
	if l := c.via.link; l != nil && l.clients[c.via.number] == c {
		delete(l.clients, c.via.number)
		l.send(c.via.number, func(b *batch) { b.byte(byte(qGone)) })
	}
	c.wait.relay = false
}

// send adds a client's request to what is to be written.
func (l *link) send(number uint32, request func(b *batch)) {
	l.out.add(func(b *batch) {
		b.out = binary.LittleEndian.AppendUint32(b.out, number)
		request(b)
	})
}

// relay performs the request in frame elsewhere.
func (c *conn) relay() error {
	f, m, v := &c.frame, c.s.m, &c.via
	waits := f.query == qWait || f.query == qBarrier
	if !waits && !silent[f.query] {
		if err := c.flush(); err != nil { // before it takes a while
			return err
		}
	}
	// PyTorch's wait and then get are a WAIT, the same one again, and a GET.
	request := c.buf[c.r : c.r+f.pos]
	again := v.same(f.query, request)
	m.Lock()
	if done, err := c.begin(f.query, waits); done || err != nil {
		m.Unlock()
		return err
	}
	for {
		l := c.s.relay.link
		if l == nil || v.read != nil && v.read != l && (again || f.query == qGet || f.query == qMultiGet) {
			if reply := failure(f.query); reply != nil {
				c.wait.ended, c.wait.giving = waits, false
				m.Unlock()
				c.replies.out = append(c.replies.out, reply...)
				return nil
			}
		}
		if l == nil {
			if err := c.awaitLink(); err != nil {
				return err
			}
			continue
		}
		c.join(l)
		l.send(v.number, c.verbatim) // before the lock is given up, or the link could be detached first
		c.s.arrivals.leave(c, false)
		switch {
		case waits:
			c.wait.relay, c.wait.parked = true, true
			m.Unlock()
			return nil
		case silent[f.query]:
			l.sent++
			v.silent = l.sent
			l.askKnown()
			m.Unlock()
			l.out.awaitRoom()
			return nil
		}
		v.due = true
		l.due++
		m.Unlock()
		if again, err := c.take(<-v.reply, l); !again {
			return err
		}
		m.Lock()
		l.detach()
	}
}

// same reports whether a request is a WAIT, and the last one was the same.
func (v *via) same(q query, request []byte) bool {
	again := q == qWait && bytes.Equal(request, v.waited)
	if v.waited = nil; q == qWait && !again {
		v.waited = bytes.Clone(request)
	}
	return again
}

// begin reports whether a request is done before it is sent. The map is locked.
func (c *conn) begin(q query, waits bool) (done bool, err error) {
	c.settle()
	canceled := c.wait.ended
	c.wait.ended = false
	switch {
	case waits && c.waits():
		return false, &requestError{err: errSecondWait}
	case q == qCancelWait && canceled:
		// It has crossed the end of the wait, which the client takes for the answer.
		return true, nil
	case q == qCancelWait:
		c.wait.giving = true
	}
	return false, nil
}

// awaitLink waits for a link. The map is locked, but while it waits and after an error.
func (c *conn) awaitLink() error {
	changed := c.s.relay.changed
	c.s.m.Unlock()
	c.s.arrivals.leave(c, false)
	select {
	case <-changed:
	case <-c.s.done:
		return net.ErrClosed
	}
	c.s.m.Lock()
	return nil
}

// join makes a client one of the link's. The map is locked.
func (c *conn) join(l *link) {
	v := &c.via
	if v.link == l {
		return
	}
	if v.reply == nil {
		v.reply = make(chan relayed, 1)
	}
	if v.link != nil {
		delete(v.link.clients, v.number) // its end is nothing to this client any more
	}
	l.last++
	v.link, v.number, v.silent, v.read = l, l.last, 0, nil
	l.clients[v.number] = c
}

// take puts a reply among those to be written, or says what becomes of the request without one.
func (c *conn) take(r relayed, l *link) (again bool, err error) {
	q, reply := c.frame.query, r.bytes
	switch {
	case r.kind == kindBad:
		return false, &requestError{err: errors.New(string(r.bytes))}
	case r.lost && (q == qAdd || q == qDelete):
		return false, net.ErrClosed // it may have been performed
	case r.lost:
		reply = failure(q)
	case r.kind != kindReply:
		return true, nil
	}
	if r.lost && reply == nil {
		return true, nil
	}
	c.s.m.Lock()
	c.settle() // the end of a wait came first
	c.wait.giving = false
	if q == qCancelWait && !r.lost {
		c.wait.relay = false
	}
	if q == qCheck && len(reply) == 1 && reply[0] == ready {
		c.via.read = l
	}
	c.s.m.Unlock()
	c.replies.out = append(c.replies.out, reply...)
	return false, nil
}

// verbatim adds the request in frame as it came.
func (c *conn) verbatim(b *batch) {
	f := &c.frame
	request, at := c.buf[c.r:c.r+f.pos], 0
	for i, value := range f.taken {
		if value != nil {
			b.out = append(b.out, request[at:f.cut[i]]...)
			b.link()
			b.chain, b.queued = append(b.chain, value), b.queued+len(value)
			at = f.cut[i]
		}
	}
	b.out = append(b.out, request[at:]...)
}

// failure is the answer to a request that cannot be performed: one at which PyTorch's client
// raises an error and has read all of it. It is nil where there is none.
func failure(q query) []byte {
	switch q {
	case qWait, qBarrier:
		return []byte{waitCanceled}
	case qCheck:
		return []byte{notReady + 1}
	case qGet, qMultiGet, qCompareSet:
		return noValue
	case qQueuePop:
		return append(appendInt(nil, 1), noValue...)
	case qCancelWait:
		return []byte{waitCanceled}
	}
	return nil
}

// noValue is the length of a value that no client can hold.
var noValue = appendInt(nil, -1)
