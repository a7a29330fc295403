package tcpstore

import (
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals has the connections of a server perform their requests in the order in which the
// requests arrive, as PyTorch's server does: a client of PyTorch takes a SET for done once it is
// sent. Go's netpoller alone would reverse them: of the connections that become ready at the same
// time, it wakes the goroutine of the last one first.
//
// An epoll of edges, for which nobody waits, keeps the order. Before it reads, a goroutine asks it
// which connections have unread bytes, and is let in after those before it. It leaves once its
// first request is performed. The others in its buffer are performed in no order.
//
// A goroutine that takes longer than mostIn to come in or to leave, because its client does not
// read its replies, has no place in the order from then on.
type arrivals struct {
	mu    sync.Mutex
	epoll int             // -1: there is none
	conns map[int32]*conn // by number
	last  int32           // number given
	queue []*conn         // the first is in, or comes in; one that is in may stand here once more
	since time.Time       // that one is the first; not kept while it alone is there
}

const mostIn = 100 * time.Millisecond

// An arrival is what arrivals knows of a connection. Its lock guards what follows turn; only the
// connection's goroutine writes back and in.
type arrival struct {
	number  int32 // 0: the connection takes no part
	socket  syscall.RawConn
	ready   func(uintptr) bool
	turn    chan struct{} // lets the goroutine in that waits; has room for one
	limit   *time.Timer   // of waiting for the first in the queue
	queued  int           // how often
	back    bool          // the goroutine comes to read soon, or is there
	in      bool          // the goroutine is let in, or waits for that
	waiting bool
	asked   bool // ready was called once
	more    bool // there may be unread bytes of which the epoll does not tell
	ended   bool // as more, until the end of the connection
	parted  bool
}

func newArrivals() *arrivals {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		epoll = -1 // no descriptor is left, and so there is no order
	}
	return &arrivals{epoll: epoll, conns: map[int32]*conn{}}
}

// close follows the end of all connections.
func (a *arrivals) close() {
	if a.epoll >= 0 {
		unix.Close(a.epoll)
	}
}

// join lets a connection take part, unless a guard reads it: what it has read may be no request.
func (a *arrivals) join(c *conn) {
	nc, ok := c.nc.(*net.TCPConn)
	if !ok || a.epoll < 0 {
		return
	}
	socket, err := nc.SyscallConn()
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: a.last}
	closed := socket.Control(func(fd uintptr) { err = unix.EpollCtl(a.epoll, unix.EPOLL_CTL_ADD, int(fd), &e) })
	if closed == nil && err == nil {
		c.arrival = arrival{number: a.last, socket: socket, turn: make(chan struct{}, 1), more: true}
		c.arrival.ready = func(uintptr) bool { return a.ready(c) }
		c.arrival.limit = time.AfterFunc(time.Hour, func() { a.late(c) })
		c.arrival.limit.Stop()
		a.conns[a.last] = c
	}
}

// part ends that.
func (a *arrivals) part(c *conn) {
	if c.arrival.number != 0 {
		a.mu.Lock()
		a.drop(c)
		a.mu.Unlock()
	}
}

func (a *arrivals) drop(c *conn) {
	if c.arrival.parted {
		return
	}
	c.arrival.parted = true
	_ = c.arrival.socket.Control(func(fd uintptr) { _ = unix.EpollCtl(a.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) })
	delete(a.conns, c.arrival.number)
	a.remove(c)
	a.remove(c)
	c.arrival.letIn()
	c.arrival.limit.Stop()
}

// read reads what has come, once what came before is performed. The goroutine is in then.
func (a *arrivals) read(c *conn, b []byte) (n int, err error) {
	for {
		if !c.arrival.in { // else it has read a part of a request
			if ordered, err := a.arrive(c); err != nil {
				return 0, err
			} else if !ordered {
				return c.nc.Read(b)
			}
		}
		closed := c.arrival.socket.Read(func(fd uintptr) bool { n, err = unix.Read(int(fd), b); return true })
		switch {
		case closed != nil:
			return 0, closed
		case n > 0:
			if n == len(b) {
				a.mu.Lock()
				c.arrival.more = true
				a.mu.Unlock()
			}
			return n, nil
		case n == 0:
			return 0, io.EOF
		case err != unix.EAGAIN && err != unix.EINTR:
			return 0, err
		}
		a.leave(c, true)
	}
}

// arrive waits until something can be read and what came before is performed.
func (a *arrivals) arrive(c *conn) (ordered bool, err error) {
	if c.arrival.number == 0 {
		return false, nil
	}
	a.leave(c, true)
	c.arrival.asked = false
	if err := c.arrival.socket.Read(c.arrival.ready); err != nil {
		return false, err
	}
	a.mu.Lock()
	if c.arrival.parted {
		a.mu.Unlock()
		return false, nil
	}
	first := a.queue[0] == c
	c.arrival.back, c.arrival.in, c.arrival.waiting = false, true, !first
	a.mu.Unlock()
	if !first {
		c.arrival.limit.Reset(mostIn)
		<-c.arrival.turn
		c.arrival.limit.Stop()
	}
	return true, nil
}

// late drops what a connection has waited for too long: the first one, and all before it that are not in.
func (a *arrivals) late(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.arrival.waiting && time.Since(a.since) >= mostIn {
		for i, before := range slices.Clone(a.queue[:slices.Index(a.queue, c)]) {
			if i == 0 || !before.arrival.in {
				a.drop(before)
			}
		}
	}
	if c.arrival.waiting {
		c.arrival.limit.Reset(mostIn)
	}
}

// ready reports whether a connection is in the queue. Asked again, it has been woken.
func (a *arrivals) ready(c *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.arrival.queued == 0 {
		a.look()
	}
	if c.arrival.more || c.arrival.asked {
		a.add(c)
	}
	c.arrival.asked, c.arrival.more = true, c.arrival.ended
	return c.arrival.queued > 0 || c.arrival.parted
}

// look queues those that have unread bytes and come to read them.
func (a *arrivals) look() {
	var events [64]unix.EpollEvent
	for n := len(events); n == len(events); {
		n, _ = unix.EpollWait(a.epoll, events[:], 0) // a signal costs the order once
		for _, e := range events[:max(n, 0)] {
			if c := a.conns[e.Fd]; c != nil {
				c.arrival.ended = c.arrival.ended || e.Events != unix.EPOLLIN
				c.arrival.more = true
				a.add(c)
			}
		}
	}
}

// add queues a connection for what it has not read.
func (a *arrivals) add(c *conn) {
	most := 0
	switch {
	case c.arrival.parted:
	case c.arrival.in:
		most = 2
	case c.arrival.back:
		most = 1
	}
	if c.arrival.queued < most {
		c.arrival.queued++
		a.queue = append(a.queue, c)
	}
}

// leave lets the next one in. Without back it may take any time until the goroutine reads again.
func (a *arrivals) leave(c *conn, back bool) {
	if c.arrival.number == 0 || !c.arrival.in && c.arrival.back == back {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.arrival.in {
		a.remove(c)
	}
	if c.arrival.in, c.arrival.back = false, back; !back {
		a.remove(c)
	}
}

func (a *arrivals) remove(c *conn) {
	i := slices.Index(a.queue, c)
	switch {
	case i < 0:
		return
	case i == 0 && len(a.queue) > 1:
		a.queue[0] = nil
		a.queue = a.queue[1:]
	default:
		a.queue = slices.Delete(a.queue, i, i+1)
	}
	c.arrival.queued--
	if i == 0 && len(a.queue) > 0 {
		a.since = time.Now()
		a.queue[0].arrival.letIn()
	}
}

func (a *arrival) letIn() {
	if a.waiting {
		a.waiting = false
		a.turn <- struct{}{}
	}
}
