package tcpstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/muster-run/muster/store/internal/kv"
)

const (
	firstBuffer = 2 << 10   // a quiet connection's read buffer
	fullBuffer  = 64 << 10  // a busy connection's
	fullReply   = 32 << 10  // replies are written once they amount to this
	firstTaken  = 1 << 20   // allocated for a value before any of it has arrived
	mostCopied  = 256 << 10 // where more is to be written, values are not copied
)

// openingTimeout is how long a new connection may take to begin as a client does.
const openingTimeout = 30 * time.Second

// bigTimeout is how long a request of more than fullBuffer may take, and how long it may
// wait for its place before.
const bigTimeout = 2 * time.Minute

// places is how many requests of more than fullBuffer a server receives at a time, by
// their greatest size: 512 MiB in all. Others wait, unread. A request that turns out to
// be bigger keeps its place until it has one of the next class, so that those of the
// last class wait for none and all come to an end.
var places = [...]struct{ size, most int }{{fullBuffer, 0}, {1 << 20, 128}, {2 * maxValue, 8}, {maxRequest, 4}}

var (
	errSlow = fmt.Errorf("a request of more than %d KiB was not complete, or its reply not read, in %v", fullBuffer>>10,
		bigTimeout)
	errFull = fmt.Errorf("no memory for its request in %v: too many big ones are incomplete", bigTimeout)
)

// A requestError is what a client did wrong.
type requestError struct {
	err     error
	opening bool // it has not begun as a client does
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

// A conn is one client's connection. Its goroutine reads requests, performs
// them in order and writes the replies when no complete request is left.
//
// It is opening until validated, with little time for that; then it performs requests;
// then it has ended, or session takes over the connection with what afterwards leaves of
// the buffer. A request of more than fullBuffer has a place (class) and little time, too,
// from claim until finish. Who answers a parked wait, and
// when, is in wait.go.
//
// s, raw, since and cut never change, nor does nc once requests are read. s.mu guards
// dropped, and the map's lock guards wait.phase. Only the goroutine touches the rest.
type conn struct {
	s     *Server
	raw   net.Conn      // to be closed, by anybody
	nc    net.Conn      // raw, or what the guard has made of it
	ended chan struct{} // closed when the goroutine is done with the map
	since time.Time
	cut   chan struct{} // the server's, which Reset closes

	validated atomic.Bool // it has begun as a client does
	dropped   bool        // closed to make room

	session func(net.Conn) // who takes the connection over

	buf   []byte
	r, w  int // buf[r:w] is what has been read and not yet parsed
	frame frame
	class int      // of places, of which buf and frame have one; 0: they need none
	keys  []string // scratch

	arrival arrival
	replies batch // to be written
	wait    wait
	via     via // of a relay's client
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{s: s, raw: nc, nc: nc, ended: make(chan struct{}), since: time.Now(), buf: make([]byte, firstBuffer)}
	c.wait.waiter.Notifier = c
	return c
}

// shut ends the connection. Any goroutine may call it.
func (c *conn) shut() {
	c.raw.Close()
	c.s.arrivals.part(c)
}

// serve performs requests until the connection ends.
func (c *conn) serve() error {
	_ = c.nc.SetReadDeadline(c.since.Add(openingTimeout)) // the guard has had its own
	for {
		err := c.receive()
		if err == nil {
			err = c.perform()
			c.finish()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if c.validated.Load() {
				return &requestError{err: errSlow}
			}
			return &requestError{errMute, true}
		}
		if err != nil {
			return err
		}
	}
}

// receive reads until the request at the start of the buffer is complete.
func (c *conn) receive() error {
	for {
		if !c.validated.Load() {
			if err := checkOpening(c.buf[c.r:c.w]); err != nil {
				return &requestError{err, true}
			}
		}
		need, err := c.frame.parse(c.buf[c.r:c.w])
		switch {
		case err != nil:
			// What came before the bad request was good.
			_ = c.flush()
			return &requestError{err: err}
		case need == 0:
			return nil
		case c.frame.wants >= bigValue:
			err = c.takeValue()
		default:
			err = c.fill(need)
		}
		if err != nil {
			return err
		}
	}
}

// claim takes a place for a request of so many bytes, and limits its time. It may have
// to wait for one.
func (c *conn) claim(size int) error {
	class := c.class
	for places[class].size < size && class < len(places)-1 {
		class++
	}
	if class == c.class {
		return nil
	}
	if err := c.rest(); err != nil {
		return err
	}
	c.s.arrivals.leave(c, false)
	err := c.place(class)
	c.resume()
	if err != nil {
		return err
	}
	c.unclaim()
	c.class = class
	return c.nc.SetDeadline(time.Now().Add(bigTimeout))
}

// place waits for a place of the class.
func (c *conn) place(class int) error {
	late := time.NewTimer(bigTimeout)
	defer late.Stop()
	select {
	case c.s.places[class] <- struct{}{}:
		return nil
	case <-late.C:
		return &requestError{err: errFull}
	case <-c.cut:
	case <-c.s.done:
	}
	return net.ErrClosed
}

// unclaim gives the place back.
func (c *conn) unclaim() {
	if c.class > 0 {
		<-c.s.places[c.class]
		c.class = 0
		_ = c.nc.SetDeadline(time.Time{})
	}
}

// finish forgets the request in frame and gives its place back. A buffer of more than fullBuffer
// is never larger than the request that it was made for, so that nothing of the next one is in it.
func (c *conn) finish() {
	c.r += c.frame.pos
	c.frame = frame{}
	if len(c.buf) > fullBuffer {
		c.resize(fullBuffer)
	}
	c.unclaim()
}

// fill reads more, into a buffer that has room for need more bytes or at least
// twice the room there was.
func (c *conn) fill(need int) error {
	// Replies may lie in the buffer.
	if err := c.flush(); err != nil {
		return err
	}
	full := c.w == len(c.buf)
	if kept := c.w - c.r; c.r > 0 && (kept == 0 || c.w+need > len(c.buf)) {
		copy(c.buf, c.buf[c.r:c.w])
		c.r, c.w = 0, kept
	}
	switch size := c.w + need; {
	case size > len(c.buf):
		size = min(size, max(2*len(c.buf), firstTaken))
		if err := c.claim(size); err != nil {
			return err
		}
		c.resize(size)
	case full && len(c.buf) < fullBuffer:
		c.resize(min(2*len(c.buf), fullBuffer))
	}
	n, err := c.read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		err = nil
	}
	return err
}

func (c *conn) resize(size int) {
	buf := make([]byte, size)
	c.w = copy(buf, c.buf[c.r:c.w])
	c.r = 0
	c.buf = buf
}

// takeValue reads the value that the request in the buffer stopped at straight
// into the slice that will be stored.
func (c *conn) takeValue() error {
	length := c.frame.wants
	if err := c.claim(length + len(c.frame.taken[0])); err != nil {
		return err
	}
	value := make([]byte, min(length, firstTaken))
	start := c.r + c.frame.pos + 8
	n := copy(value, c.buf[start:c.w])
	c.w = start
	for n < length {
		if n == len(value) {
			value = append(make([]byte, 0, length), value...)[:length]
		}
		m, err := c.read(value[n:])
		if n += m; m == 0 && err != nil {
			return err
		}
	}
	c.frame.taken[c.frame.field-1] = value
	return nil
}

// flush writes all replies.
func (c *conn) flush() error {
	if c.replies.len() > 0 {
		c.s.arrivals.leave(c, true)
	}
	return c.replies.writeTo(c.nc)
}

// read writes all replies and reads into b.
func (c *conn) read(b []byte) (n int, err error) {
	if c.wait.parked || c.class > 0 {
		c.s.arrivals.leave(c, true)
	}
	if err := c.rest(); err != nil {
		return 0, err
	}
	n, err = c.s.arrivals.read(c, b)
	c.resume()
	return n, err
}

// replyKey replies with the value of a key, nothing if there is none. Where much is to be
// written already, small values are not copied either.
func (c *conn) replyKey(key string) {
	value, _ := c.s.m.Get(key)
	if len(value) < bigValue && c.replies.len() < mostCopied {
		c.replies.value(value)
		return
	}
	value, _ = c.s.m.Share(key)
	c.replies.shared(value)
}

// text is a string over the bytes of the read buffer, good until the request
// has been performed. The map makes a copy of keys that it keeps.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (c *conn) value(i int) kv.Value {
	if taken := c.frame.taken[i]; taken != nil {
		return kv.Value{Bytes: taken, Keep: true}
	}
	return kv.Value{Bytes: c.frame.value[i].of(c.buf[c.r:])}
}

// list returns the keys of a list, good until the request has been performed.
func (c *conn) list() []string {
	keys := c.keys[:0]
	rest := c.frame.list.of(c.buf[c.r:])
	for range c.frame.num {
		var key []byte
		key, rest = next(rest)
		keys = append(keys, text(key))
	}
	if cap(keys) <= 1024 {
		c.keys = keys
	}
	return keys
}

var (
	errSecondWait     = errors.New("a WAIT or BARRIER while another is parked on the connection")
	errSecondValidate = errors.New("a second VALIDATE")
)

// perform does what the complete request in frame asks for.
func (c *conn) perform() error {
	f, m := &c.frame, c.s.m
	switch f.query {
	case qValidate:
		if c.validated.Load() {
			_ = c.flush()
			return &requestError{err: errSecondValidate}
		}
		c.validated.Store(true)
		c.s.arrivals.join(c)
		return c.nc.SetReadDeadline(time.Time{})
	case qPing:
		m.Lock()
		c.settle()
		m.Unlock()
		c.replies.out = binary.LittleEndian.AppendUint32(c.replies.out, uint32(f.num))
		return nil
	case qSession:
		return c.enterSession(text(f.key.of(c.buf[c.r:])))
	}
	if c.s.relay != nil {
		return c.relay()
	}
	if f.query == qListKeys {
		m.Lock()
		c.settle()
		keys := m.Keys()
		m.Unlock()
		return c.replyKeys(keys, fullReply)
	}
	c.s.arrivals.rejoin(c)
	m.Lock()
	c.settle()
	err := c.locked(f, m)
	m.Unlock()
	c.s.arrivals.leave(c, true)
	if err != nil {
		_ = c.flush()
		return &requestError{err: err}
	}
	if c.replies.len() >= fullReply {
		return c.flush()
	}
	return nil
}

// locked is the part of perform that needs the map.
func (c *conn) locked(f *frame, m *kv.Map) error {
	key := text(f.key.of(c.buf[c.r:]))
	switch f.query {
	case qSet:
		m.Set(key, c.value(0))
	case qCompareSet:
		c.replies.value(m.CompareAndSet(key, c.value(0).Bytes, c.value(1)))
	case qGet:
		c.replyKey(key)
	case qAdd:
		sum, err := m.Add(key, f.num)
		if err != nil {
			return fmt.Errorf("ADD to %.200q: %w", key, err)
		}
		c.replies.int(sum)
	case qCheck:
		answer := byte(ready)
		if slices.ContainsFunc(c.list(), func(key string) bool { return !m.Has(key) && !c.s.offers(key) }) {
			answer = notReady
		}
		c.replies.byte(answer)
	case qWait, qBarrier:
		return c.hold(f, m, key)
	case qCancelWait:
		m.Cancel(&c.wait.waiter)
		c.replies.byte(waitCanceled)
	case qNumKeys:
		c.replies.int(int64(m.Len()))
	case qDelete:
		n := int64(0)
		if m.Delete(key) {
			n = 1
		}
		c.replies.int(n)
	case qAppend:
		m.Append(key, c.value(0))
	case qMultiGet:
		for _, key := range c.list() {
			c.replyKey(key)
		}
	case qMultiSet:
		c.multiSet(f, m)
	case qQueuePush:
		m.Push(key, c.value(0))
	case qQueuePop:
		value, before := m.Pop(key)
		c.wait.waiter.Popped(key)
		c.replies.int(int64(before))
		if before > 0 {
			c.replies.value(value)
		}
	case qQueueLen:
		c.replies.int(int64(m.QueueLen(key)))
	}
	return nil
}

// hold is locked for requests that may be parked.
func (c *conn) hold(f *frame, m *kv.Map, key string) error {
	if c.wait.waiter.Parked() {
		return errSecondWait
	}
	if f.query == qWait {
		c.park(m.Wait(&c.wait.waiter, c.list()...))
		return nil
	}
	done, err := m.Barrier(&c.wait.waiter, key, f.num)
	if err != nil {
		return fmt.Errorf("BARRIER at %.200q: %w", key, err)
	}
	c.park(done)
	return nil
}

// multiSet performs a MULTI_SET. The map is locked.
func (c *conn) multiSet(f *frame, m *kv.Map) {
	rest := f.list.of(c.buf[c.r:])
	for range f.num {
		var key, value []byte
		key, rest = next(rest)
		value, rest = next(rest)
		m.Set(text(key), kv.Value{Bytes: value})
	}
}

// replyKeys replies to LIST_KEYS, and writes so many bytes at once. The strings are the map's own,
// which nobody changes.
func (c *conn) replyKeys(keys []string, most int) error {
	c.replies.int(int64(len(keys)))
	for _, key := range keys {
		c.replies.int(int64(len(key)))
		c.replies.text(key)
		if c.replies.len() >= most {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}
