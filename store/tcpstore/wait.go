package tcpstore

import (
	"sync"
	"syscall"

	"github.com/muster-run/muster/store/internal/kv"
)

// A wait is a connection's WAIT or BARRIER, one at a time, with what it takes to write its
// answer, a single byte. A server that ends answers nothing (Server.Close), but a relay on
// the client's own host answers that the wait is cancelled (link.cancel).
//
// The answer is due when another connection's request fulfils the wait. To wake this
// connection's goroutine for that would cost the client twice the time. So the other
// goroutine, which is at work anyway, hands the answer on to the client itself, but only
// if this connection's goroutine has nothing to write: the byte must come neither between
// the bytes of a reply nor behind the answer to a CANCEL_WAIT that was performed later.
// Hence the phases, which the map's lock guards, since that lock is the order in which
// waits are fulfilled and cancelled:
//
//	working  the goroutine performs requests, and may have replies to write
//	owing    as working, and the wait has been fulfilled: the answer goes between the replies
//	reading  all replies are written, a wait is parked, and the goroutine blocks
//
//	working -> owing    Fire
//	owing -> working    settle, before the next request is performed, or the goroutine blocks
//	working -> reading  rest, if it finds nothing owed and the wait still parked
//	reading -> working  resume
//
// In reading, Fire leaves the answer to Deliver, which the same other goroutine calls next,
// without the map's lock, since nobody may do system calls under that. Fire adds to answer
// under the lock, Deliver is done with it when the byte is written. The goroutine waits for that
// in resume, before it performs anything, and in dropWaits. A connection without a
// parked wait stays in working and takes no lock to read.
type wait struct {
	waiter kv.Waiter
	phase  phase
	answer sync.WaitGroup // of Deliver
	code   byte           // the answer: stopWaiting, or waitCanceled of a relay
	relay  bool           // a relay's WAIT or BARRIER is under way; the map's lock guards it, too
	giving bool           // a relay's client is giving it up, and will get waitCanceled for that
	ended  bool           // a relay has ended one with waitCanceled, and nothing has come since; as relay

	parked bool // the waiter may be parked; the goroutine's own
}

type phase byte

const (
	working phase = iota
	owing
	reading
)

// park notes what became of a WAIT or BARRIER.
func (c *conn) park(done bool) {
	if done {
		c.replies.byte(stopWaiting)
	} else {
		c.wait.parked = true
	}
}

// waits reports whether a WAIT or BARRIER is under way. The map is locked.
func (c *conn) waits() bool { return c.wait.relay || c.wait.waiter.Parked() }

// settle puts an owed answer among the replies. The map is locked.
func (c *conn) settle() bool {
	if c.wait.phase != owing {
		return false
	}
	c.wait.phase = working
	c.replies.byte(c.wait.code)
	return true
}

// rest writes all replies, and has others answer a parked wait from then on. The goroutine
// may block behind it, and calls resume then.
func (c *conn) rest() error {
	for {
		if err := c.flush(); err != nil || !c.wait.parked {
			return err
		}
		c.s.m.Lock()
		owed := c.settle()
		if !owed {
			if c.wait.parked = c.waits(); c.wait.parked {
				c.wait.phase = reading
			}
		}
		c.s.m.Unlock()
		if !owed {
			return nil
		}
	}
}

// resume ends what rest has begun.
func (c *conn) resume() {
	if !c.wait.parked {
		return
	}
	c.s.m.Lock()
	c.wait.phase = working
	c.s.m.Unlock()
	c.wait.answer.Wait()
}

// dropWaits drops what the connection waits for.
func (c *conn) dropWaits() {
	c.s.arrivals.part(c)
	c.unclaim()
	c.s.m.Lock()
	c.s.m.Cancel(&c.wait.waiter)
	c.hangUp()
	c.s.m.Unlock()
	c.wait.answer.Wait()
}

// Fire implements kv.Notifier: it reports whether Deliver is to write the answer. The map is
// locked.
func (c *conn) Fire() bool {
	if c.wait.phase != reading {
		c.wait.phase = owing
		return false
	}
	c.wait.answer.Add(1)
	return true
}

// Deliver implements kv.Notifier: it writes the answer to a wait. A client that
// has filled its socket by not reading gets it from a goroutine of its own.
func (c *conn) Deliver() {
	if c.writeNow(c.wait.code) {
		c.wait.answer.Done()
		return
	}
	go func() {
		c.nc.Write([]byte{c.wait.code})
		c.wait.answer.Done()
	}()
}

// writeNow writes a byte if that does not block.
func (c *conn) writeNow(b byte) bool {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	again := false
	raw.Write(func(fd uintptr) bool {
		_, err := syscall.Write(int(fd), []byte{b})
		again = err == syscall.EAGAIN || err == syscall.EINTR
		return true
	})
	return !again
}
