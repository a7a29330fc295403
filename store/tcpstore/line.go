package tcpstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A line is one connection of a client. One goroutine at a time uses it.
type line struct {
	nc      net.Conn
	in      *bufio.Reader
	limit   time.Time      // the deadline set on nc
	cutting sync.WaitGroup // a context that is about to set another one
	request batch          // to be sent
	most    int64          // bytes of one value in a reply
}

const (
	replyBuffer  = 4 << 10
	cancelGrace  = 5 * time.Second        // for the answer to CANCEL_WAIT
	cutGrace     = 250 * time.Millisecond // for a reply when the context is done
	mostReserved = 64 << 10               // for a reply before any of it has arrived
	maxReply     = 1 << 30                // bytes of one value in a reply, by default
)

// errLate says that the client's own time limit has passed.
var errLate = errors.New("no answer in time")

// errLong says that an answer is longer than this client takes.
var errLong = errors.New("reply announces")

func newLine(nc net.Conn) *line {
	return &line{nc: nc, in: bufio.NewReaderSize(nc, replyBuffer), most: maxReply}
}

// A request is a query with its arguments, of which layouts says which it has.
type request struct {
	query  query
	op     string    // the call that it is a part of, in lower case
	key    string    // k
	bare   bool      // the key goes without a "/" before it
	values [2][]byte // v
	n      int64     // n
	keys   []string  // K, P
	pairs  [][]byte  // P: the values
}

// check says what the server would close the connection for.
func (r *request) check() error {
	if len(r.keys) > maxKeys {
		return &LimitError{"number of keys", len(r.keys), maxKeys, ""}
	}
	for i := range len(r.keys) + 1 {
		key := r.key
		if i > 0 {
			key = r.keys[i-1]
		}
		if n := len(key) + 1; n > maxKey {
			return &LimitError{"key", n, maxKey, key[:64]}
		}
	}
	for i := range len(r.pairs) + len(r.values) {
		key, value := r.key, r.values[i%2]
		if i >= len(r.values) {
			key, value = r.keys[i-2], r.pairs[i-2]
		}
		if len(value) > maxValue {
			return &LimitError{"value", len(value), maxValue, key[:min(len(key), 64)]}
		}
	}
	return nil
}

// awaited are the keys that the request waits for.
func (r *request) awaited() []string {
	switch r.query {
	case qWait:
		return r.keys
	case qBarrier:
		return []string{r.key}
	}
	return nil
}

// put begins a new request. Behind one that servers do not answer goes one that they
// do: CHECK of no keys, which is answered by ready.
func (l *line) put(r *request) {
	l.request = batch{out: append(l.request.out[:0], byte(r.query))}
	value := 0
	for _, kind := range []byte(layouts[r.query]) {
		switch kind {
		case 'k':
			l.key(r.key, r.bare)
		case 'v':
			l.request.value(r.values[value])
			value++
		case 'n':
			l.request.int(r.n)
		case 'K', 'P':
			l.request.int(int64(len(r.keys)))
			for i, key := range r.keys {
				if l.key(key, false); kind == 'P' {
					l.request.value(r.pairs[i])
				}
			}
		}
	}
	if silent[r.query] {
		l.request.byte(byte(qCheck))
		l.request.int(0)
	}
}

func (l *line) key(key string, bare bool) {
	slash := "/"
	if bare {
		slash = ""
	}
	l.request.int(int64(len(slash) + len(key)))
	l.request.text(slash)
	l.request.text(key)
}

func (l *line) send() error { return l.request.writeTo(l.nc) }

// exchange sends the request and reads the reply, which is due within the
// limit, or half as long again, if there is one and the context has no deadline.
// When the context is done there is still a moment for the reply: it most likely is
// on its way, and what the server has done would be lost.
// After an error the line cannot be used again.
func (l *line) exchange(ctx context.Context, limit time.Duration, reply func(*line) error) (err error) {
	if _, ok := ctx.Deadline(); limit > 0 && !ok {
		// Setting a deadline costs more than looking at the clock.
		if now := time.Now(); l.limit.Sub(now) < limit {
			l.limit = now.Add(limit + limit/2)
			l.nc.SetDeadline(l.limit)
		}
	} else if !l.limit.IsZero() {
		l.limit = time.Time{}
		l.nc.SetDeadline(l.limit)
	}
	if ctx.Done() != nil {
		l.cutting.Add(1)
		stop := context.AfterFunc(ctx, func() {
			defer l.cutting.Done()
			l.limit = time.Now().Add(cutGrace)
			l.nc.SetDeadline(l.limit)
		})
		defer func() {
			if stop() {
				l.cutting.Done()
			} else {
				l.cutting.Wait() // or it would set its deadline on the next request
			}
		}()
	}
	if err = l.send(); err == nil {
		err = reply(l)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errLate
	}
	return err
}

// await sends the request and blocks until it is answered. If the context ends
// first, or its absence of a deadline and the limit do, it takes the wait back
// from the server. It reports whether the line is in order.
func (l *line) await(ctx context.Context, limit time.Duration) (usable bool, err error) {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		wait, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	l.limit = time.Time{}
	l.nc.SetDeadline(l.limit)
	cut := make(chan struct{})
	stop := context.AfterFunc(wait, func() {
		l.nc.SetDeadline(time.Unix(1, 0))
		close(cut)
	})
	sent := false
	if err = l.send(); err == nil {
		sent = true
		err = l.expect(stopWaiting)
	}
	if stop() {
		return err == nil, err
	}
	<-cut
	switch {
	case err == nil:
		return true, nil // it came in the last moment
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return false, err
	case !sent:
		return false, errLate
	}
	l.nc.SetDeadline(time.Now().Add(cancelGrace))
	if _, err := l.nc.Write([]byte{byte(qCancelWait)}); err != nil {
		return false, errLate
	}
	// A stop-waiting may have crossed the request.
	answer, err := l.readByte()
	if err == nil && answer == stopWaiting {
		answer, err = l.readByte()
	}
	return err == nil && answer == waitCanceled, errLate
}

func (l *line) expect(want byte) error {
	got, err := l.readByte()
	if err == nil && got != want {
		err = fmt.Errorf("answer %d, want %d", got, want)
	}
	return err
}

func (l *line) readByte() (byte, error) {
	b, err := l.in.ReadByte()
	return b, noEOF(err)
}

func (l *line) readInt() (int64, error) {
	b, err := l.in.Peek(8)
	if err != nil {
		return 0, noEOF(err)
	}
	n := int64(binary.LittleEndian.Uint64(b))
	l.in.Discard(8)
	return n, nil
}

// bytes reads a length and that many bytes.
func (l *line) bytes() ([]byte, error) {
	n, err := l.readInt()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > l.most {
		return nil, fmt.Errorf("%w %d bytes, at most %d are accepted", errLong, n, l.most)
	}
	return readAll(l.in, n)
}

// readAll reads n bytes, and takes no more memory than twice what has come.
func readAll(in io.Reader, n int64) ([]byte, error) {
	b := make([]byte, min(n, mostReserved))
	for have := 0; ; {
		m, err := io.ReadFull(in, b[have:])
		if err != nil {
			return nil, noEOF(err)
		}
		if have += m; int64(have) == n {
			return b, nil
		}
		b = append(b, make([]byte, min(int64(have), n-int64(have)))...)
	}
}

// list reads a count and that many strings.
func (l *line) list() (keys []string, err error) {
	n, err := l.readInt()
	if err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, fmt.Errorf("reply announces %d keys", n)
	}
	keys = make([]string, 0, min(n, mostReserved))
	for range n {
		key, err := l.bytes()
		if err != nil {
			return nil, err
		}
		keys = append(keys, string(key))
	}
	return keys, nil
}

// noEOF makes an end of the stream an error, since a reply was due.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errEnded
	}
	return err
}

var errEnded = errors.New("the server closed it")
