package logs

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// relayBuffer is how much a relay reads at once.
const relayBuffer = 64 << 10

var relayBuffers = sync.Pool{New: func() any { return new([relayBuffer]byte) }}

// A relay carries a worker's stderr, or both its streams in the order in which
// they were written, to the console and keeps the end of it. It waits in Go's poller,
// without a thread and without a buffer.
//
// Whole lines are written at once. A begun one waits for its end as long as hold
// says, since Python writes the parts of an unbuffered print one by one, and a
// part of another worker's would come in between. A console that nobody reads
// holds the worker up.
//
// A relay is told to end by finish, and has ended when done is closed; f and begun are
// run's own.
type relay struct {
	f    *os.File // the agent's end, non-blocking
	in   *os.File // the other end of a Run's; else nil
	to   *console // nil: the worker's output is kept, not shown
	hold time.Duration
	done chan struct{}

	begun []byte // a line that waits for its end, until the read deadline

	finishing atomic.Bool  // what comes from now on is not waited for
	abandoned atomic.Bool  // nothing may be written any more
	lost      atomic.Int64 // bytes that the console did not take

	mu   sync.Mutex // guards the rest
	kept []byte     // the last that was carried: tailSize bytes, and keptMore at most
	read Output
}

// pipeCapacity is the most that a pipe or pty holds, in bytes.
// Source: fs.pipe-max-size.
const pipeCapacity = 1 << 20

// keptMore is how much more than tailSize is kept, so that it is not moved with each read.
const keptMore = tailSize / 4

// relayHold is how long a begun line of one of several workers waits.
const relayHold = 50 * time.Millisecond

func newRelay(f *os.File, to *console, hold time.Duration) *relay {
	return &relay{f: f, to: to, hold: hold, done: make(chan struct{})}
}

// finish lets the relay end once it has carried everything written so far, even
// if a process still holds the other end.
func (r *relay) finish() {
	r.finishing.Store(true)
	_ = r.f.SetReadDeadline(time.Unix(1, 0)) // wakes it
}

// run carries until the other end is closed or finish was called.
func (r *relay) run() {
	defer close(r.done)
	defer r.f.Close()
	defer r.release()
	conn, _ := r.f.SyscallConn() // what is not nil has one
	for {
		more := false
		err := conn.Read(func(fd uintptr) bool {
			var idle bool
			idle, more = r.carry(int(fd), 0)
			return !idle
		})
		if r.finishing.Load() {
			// The poller no longer waits, and what is in a pipe fits in it.
			_ = conn.Control(func(fd uintptr) { r.carry(int(fd), pipeCapacity) })
			return
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.release()
			_ = r.f.SetReadDeadline(time.Time{})
			if r.finishing.Load() {
				r.finish() // its deadline may just have been lost
			}
		case err != nil || !more:
			return
		}
	}
}

// release writes the line that waits for its end.
func (r *relay) release() {
	r.write(r.begun)
	r.begun = r.begun[:0]
}

// carry reads and writes until there is nothing to read for the moment (idle),
// or nothing any more, or, if budget is not 0, that many bytes have been read.
func (r *relay) carry(fd, budget int) (idle, more bool) {
	buf := relayBuffers.Get().(*[relayBuffer]byte)
	defer relayBuffers.Put(buf)
	held, total := copy(buf[:], r.begun), 0 // held is the length of a begun line at buf's beginning
	waits := held > 0                       // for its end already
	r.begun = r.begun[:0]
	defer func() {
		if r.hold == 0 || r.finishing.Load() {
			r.write(buf[:held])
			return
		}
		r.begun = append(r.begun, buf[:held]...)
		if held > 0 && !waits {
			_ = r.f.SetReadDeadline(time.Now().Add(r.hold))
		}
	}()
	for !r.abandoned.Load() {
		if budget == 0 && r.finishing.Load() {
			return true, true
		}
		n, err := syscall.Read(fd, buf[held:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return true, true
		case n <= 0 || err != nil: // a pty's end is EIO
			return false, false
		}
		r.keep(buf[held : held+n])
		total += n
		all := buf[:held+n]
		end := bytes.LastIndexByte(all, '\n') + 1
		if end == 0 && len(all) == len(buf) || budget > 0 && total >= budget {
			end = len(all)
		}
		r.write(all[:end])
		waits = waits && end == 0
		held = copy(buf[:], all[end:])
		if budget > 0 && total >= budget {
			return false, true
		}
	}
	return false, false
}

func (r *relay) write(p []byte) {
	if len(p) == 0 || r.to == nil || r.abandoned.Load() {
		return
	}
	r.lost.Add(int64(r.to.put(relays, p, 0)))
}

func (r *relay) keep(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept = append(r.kept, p...); len(r.kept) > tailSize+keptMore {
		r.kept = append(r.kept[:0], r.kept[len(r.kept)-tailSize:]...)
	}
	r.read.Bytes += int64(len(p))
	r.read.Last = time.Now()
}

// output says how much was carried.
func (r *relay) output() Output {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read
}

// tail returns the end of what was carried.
func (r *relay) tail() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.kept[max(len(r.kept)-tailSize, 0):])
}
