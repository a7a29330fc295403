package tcpstore

import (
	"io"
	"net"
	"os"
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
// One goroutine (run) waits for all connections with an epoll of edges, which tells them in order.
// It queues those that have unread bytes. The goroutine of the first one in the queue is let in: it
// reads, performs its first request, and lets the next one in before it writes its reply. The other
// requests in its buffer wait once more for what has arrived by then.
//
// A connection that does not come in or leave for mostIn, because its client does not read its
// replies, has no place in the order from then on.
type arrivals struct {
	mu    sync.Mutex
	epoll int // -1: there is none
	file  *os.File
	conns map[int32]*conn // by number
	last  int32           // number given
	queue []*conn         // the first is in, or comes in; one that is in may stand here once more
	turns int             // how many have been the first
	seen  int             // turns when late looked last
	limit *time.Timer     // runs late; armed while there is a queue
	armed bool
}

const mostIn = 100 * time.Millisecond

// An arrival is what arrivals knows of a connection. Its lock guards what follows turn; only the
// connection's goroutine writes back and in while it does not wait. The goroutine alone has again,
// and what is before turn.
type arrival struct {
	number  int32 // 0: the connection takes no part
	socket  syscall.RawConn
	take    func(fd uintptr) bool // reads into buf
	buf     []byte
	n       int
	err     error
	turn    chan struct{} // wakes the goroutine that waits; has room for one
	queued  int           // how often
	back    bool          // the goroutine comes to read soon, or waits
	in      bool          // the goroutine is let in
	waiting bool
	again   bool // no request of the buffer but its first is performed
	more    bool // there may be unread bytes for which it is not queued
	ended   bool // as more, until the end of the connection
}

func newArrivals() *arrivals {
	a := &arrivals{epoll: -1, conns: map[int32]*conn{}}
	a.limit = time.AfterFunc(time.Hour, a.late)
	a.limit.Stop()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return a // no descriptor is left, and so there is no order
	}
	_ = unix.SetNonblock(epoll, true) // so that the netpoller takes it
	a.epoll, a.file = epoll, os.NewFile(uintptr(epoll), "epoll")
	return a
}

// run queues what has unread bytes, until close.
func (a *arrivals) run() {
	raw, err := a.file.SyscallConn()
	for err == nil {
		err = raw.Read(func(uintptr) bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.look()
		})
	}
}

// look queues what has unread bytes, and reports whether there was news.
func (a *arrivals) look() (news bool) {
	var events [64]unix.EpollEvent
	for n := len(events); n == len(events); {
		n, _ = unix.EpollWait(a.epoll, events[:], 0)
		for _, e := range events[:max(n, 0)] {
			news = true
			if c := a.conns[e.Fd]; c != nil {
				c.arrival.ended = c.arrival.ended || e.Events != unix.EPOLLIN
				a.add(c)
			}
		}
	}
	return news
}

// close ends run. The connections are closed.
func (a *arrivals) close() {
	a.mu.Lock()
	a.epoll = -1
	a.limit.Stop()
	a.mu.Unlock()
	if a.file != nil {
		a.file.Close()
	}
}

// join lets a connection take part, unless a guard reads it: what it has read may be no request.
func (a *arrivals) join(c *conn) {
	nc, ok := c.nc.(*net.TCPConn)
	if !ok {
		return
	}
	socket, err := nc.SyscallConn()
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.epoll < 0 {
		return
	}
	a.last++
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: a.last}
	closed := socket.Control(func(fd uintptr) { err = unix.EpollCtl(a.epoll, unix.EPOLL_CTL_ADD, int(fd), &e) })
	if closed == nil && err == nil {
		if a.last == 1 {
			c.s.all.Go(a.run)
		}
		c.arrival = arrival{number: a.last, socket: socket, turn: make(chan struct{}, 1), more: true}
		x := &c.arrival
		x.take = func(fd uintptr) bool { x.n, x.err = unix.Read(int(fd), x.buf); return true }
		a.conns[a.last] = c
	}
}

// part ends that. The goroutine does not wait any more.
func (a *arrivals) part(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(c)
}

func (a *arrivals) drop(c *conn) {
	if a.conns[c.arrival.number] != c {
		return
	}
	if a.epoll >= 0 {
		_ = c.arrival.socket.Control(func(fd uintptr) { _ = unix.EpollCtl(a.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) })
	}
	delete(a.conns, c.arrival.number)
	a.remove(c)
	a.remove(c)
	c.arrival.wake()
}

// read reads what has come, once what came before is performed. The goroutine is in then.
func (a *arrivals) read(c *conn, b []byte) (n int, err error) {
	for {
		// One that is in has read a part of a request.
		if !c.arrival.in && !a.arrive(c) {
			return c.nc.Read(b)
		}
		c.arrival.buf = b
		closed := c.arrival.socket.Read(c.arrival.take)
		switch n, err := c.arrival.n, c.arrival.err; {
		case closed != nil:
			return 0, closed
		case n > 0:
			if n == len(b) {
				a.unread(c)
			}
			c.arrival.again = true
			return n, nil
		case n == 0:
			return 0, io.EOF
		case err != unix.EAGAIN && err != unix.EINTR:
			return 0, err
		}
		a.leave(c, true)
	}
}

// rejoin lets those go first whose requests have arrived before the second one of the buffer is performed.
func (a *arrivals) rejoin(c *conn) {
	if c.arrival.in || !c.arrival.again {
		return
	}
	c.arrival.again = false
	a.unread(c)
	if a.arrive(c) {
		a.unread(c) // its place may have been that of bytes which it has not read
	}
}

// unread notes that there may be unread bytes of which the epoll does not tell.
func (a *arrivals) unread(c *conn) {
	a.mu.Lock()
	c.arrival.more = true
	a.mu.Unlock()
}

// arrive waits until something can be read and what came before is performed. It reports false if
// the connection takes no part, or a request of it has little time.
func (a *arrivals) arrive(c *conn) bool {
	if c.arrival.number == 0 || c.class > 0 {
		return false
	}
	a.leave(c, true)
	a.mu.Lock()
	if a.conns[c.arrival.number] != c {
		a.mu.Unlock()
		return false
	}
	if c.arrival.more || c.arrival.ended {
		a.look()
		c.arrival.more = false
		a.add(c)
	}
	if len(a.queue) > 0 && a.queue[0] == c {
		c.arrival.back, c.arrival.in = false, true
		a.mu.Unlock()
		return true
	}
	c.arrival.waiting = true
	a.mu.Unlock()
	<-c.arrival.turn
	return c.arrival.in
}

// late drops the first connection if it is that for too long, and all others that do not wait for their turn.
func (a *arrivals) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) > 1 && a.turns == a.seen {
		for i, c := range slices.Clone(a.queue) {
			if i == 0 || !c.arrival.waiting {
				a.drop(c)
			}
		}
	}
	a.seen = a.turns
	if a.armed = len(a.queue) > 0 && a.epoll >= 0; a.armed {
		a.limit.Reset(mostIn)
	}
}

// add queues a connection for what it has not read.
func (a *arrivals) add(c *conn) {
	most := 0
	switch {
	case c.arrival.in:
		most = 2
	case c.arrival.back:
		most = 1
	}
	if most == 0 {
		c.arrival.more = true
	}
	if c.arrival.queued >= most {
		return
	}
	c.arrival.queued++
	a.queue = append(a.queue, c)
	if len(a.queue) == 1 {
		a.first()
	}
	if !a.armed {
		a.armed = true
		a.limit.Reset(mostIn)
	}
}

// leave lets the next one in. Without back it may take any time until the goroutine reads again.
func (a *arrivals) leave(c *conn, back bool) {
	back = back && c.class == 0
	if c.arrival.number == 0 || !c.arrival.in && c.arrival.back == back {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.arrival.in {
		a.remove(c)
		if c.arrival.queued > 0 && c.w > c.r+c.frame.pos { // for what it has read already
			a.remove(c)
			c.arrival.more = true
		}
	}
	if c.arrival.in, c.arrival.back = false, back; !back {
		c.arrival.more = true
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
		a.first()
	}
}

// first lets the first one in if it waits.
func (a *arrivals) first() {
	a.turns++
	if c := a.queue[0]; c.arrival.waiting {
		c.arrival.back, c.arrival.in = false, true
		c.arrival.wake()
	}
}

func (a *arrival) wake() {
	if a.waiting {
		a.waiting = false
		a.turn <- struct{}{}
	}
}
