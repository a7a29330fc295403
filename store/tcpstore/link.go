package tcpstore

import (
	"encoding/binary"
	"net"
	"sync"
)

// A relay's connection to a Shared carries the requests of many clients:
//
//	to the Shared   the client's number, in four bytes, and a request as clients send it
//	from it         the number, a kind, a length in four bytes, and that many bytes
//
// Those of one client are performed, and answered, in the order in which they come.
const (
	kindReply = iota // what the client is to get
	kindWait         // the same, a byte, and it ends a WAIT or BARRIER
	kindOver         // the store has ended and has not performed the request
	kindBad          // the client is to be cut off; why
)

// qGone is a relay's: the client has gone.
const qGone query = 0xA8

const replyHead = 4 + 1 + 4

// mostLinked is how many bytes may wait to be written before more are read.
const mostLinked = 4 << 20

// An outbox is what is still to be written to a connection. Whatever has come meanwhile goes
// out with one call.
//
// The map's lock is held where something is added, so that requests and answers go out in the order in
// which the map performs them. So add only copies, and the one goroutine of write does the system calls.
// What bounds the memory is awaitRoom: those who read from the other end call it, without a lock, before
// they read on.
type outbox struct {
	wake chan struct{} // has room for one

	mu    sync.Mutex // guards the rest
	room  sync.Cond
	batch batch
	ended bool
}

func newOutbox() *outbox {
	o := &outbox{wake: make(chan struct{}, 1)}
	o.room.L = &o.mu
	return o
}

// add lets f add to what is to be written. It does not block.
func (o *outbox) add(f func(b *batch)) {
	o.mu.Lock()
	if !o.ended {
		f(&o.batch)
	}
	o.mu.Unlock()
	o.ring()
}

func (o *outbox) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// answer adds an answer without the reply's bytes, of which there will be n.
func (o *outbox) answer(client uint32, kind byte, reply ...byte) {
	o.add(func(b *batch) { b.head(client, kind, len(reply)); b.out = append(b.out, reply...) })
}

func (b *batch) head(client uint32, kind byte, n int) {
	b.out = binary.LittleEndian.AppendUint32(b.out, client)
	b.out = append(b.out, kind)
	b.out = binary.LittleEndian.AppendUint32(b.out, uint32(n))
}

// awaitRoom blocks while too much is to be written.
func (o *outbox) awaitRoom() {
	o.mu.Lock()
	for o.batch.len() > mostLinked && !o.ended {
		o.room.Wait()
	}
	o.mu.Unlock()
}

// write writes until the end, or until the connection ends, which it closes.
func (o *outbox) write(nc net.Conn) {
	var writing batch
	for range o.wake {
		o.mu.Lock()
		writing, o.batch = o.batch, writing // one is filled while the other is written; both keep their memory
		ended := o.ended
		o.room.Broadcast()
		o.mu.Unlock()
		if writing.writeTo(nc) != nil {
			nc.Close()
			o.end()
			return
		}
		if ended {
			return
		}
	}
}

// end drops what is to be written.
func (o *outbox) end() {
	o.mu.Lock()
	o.ended, o.batch = true, batch{}
	o.room.Broadcast()
	o.mu.Unlock()
	o.ring()
}
