package tcpstore

import (
	"encoding/binary"
	"fmt"
)

// query is the first byte of a request.
// Source: QueryType in TCPStoreBackend.hpp.
type query byte

const (
	qValidate query = iota
	qSet
	qCompareSet
	qGet
	qAdd
	qCheck
	qWait
	qNumKeys
	qDelete
	qAppend
	qMultiGet
	qMultiSet
	qCancelWait
	qPing
	qQueuePush
	qQueuePop
	qQueueLen
	qListKeys
	qBarrier
	numQueries
)

// qSession turns a connection into a session. It is ours, and far from the numbers
// that PyTorch has given so far.
const qSession query = 0xA7

const (
	ready, notReady           = 0, 1 // replies to CHECK
	stopWaiting, waitCanceled = 0, 1 // replies to WAIT and BARRIER, and to CANCEL_WAIT
	accepted, refused         = 0, 1 // replies to SESSION
)

// Limits of a request. The first three are those of PyTorch's libuv server; one
// more closes the connection. The last bounds what a connection can make the
// server hold before its request is complete.
const (
	maxKey     = 8192     // bytes of a key
	maxValue   = 8 << 20  // bytes of a value
	maxKeys    = 131072   // keys in one CHECK, WAIT, MULTI_GET or MULTI_SET
	maxRequest = 64 << 20 // bytes of a request
	maxQuoted  = 16       // bytes of a bad request shown in the log
)

// initKey counts the workers that have joined. It is the one key that torch's
// clients do not put a "/" before.
const initKey = "init/"

// sessionKey exists, as far as CHECK is concerned, at a server that offers
// sessions. It is in no list and no count.
const sessionKey = "/muster/session/1"

// layouts gives the arguments of each query: k a key, v a value, n a number
// of 64 bits, u one of 32 bits, K a list of keys, P a list of pairs.
var layouts = [256]string{
	qValidate: "u", qSet: "kv", qCompareSet: "kvv", qGet: "k", qAdd: "kn",
	qCheck: "K", qWait: "K", qDelete: "k", qAppend: "kv", qMultiGet: "K",
	qMultiSet: "P", qPing: "u", qQueuePush: "kv", qQueuePop: "k",
	qQueueLen: "k", qBarrier: "kn", qSession: "k",
}

// silent are the queries that have no reply.
var silent = [256]bool{qSet: true, qAppend: true, qMultiSet: true, qQueuePush: true}

// A frame is one request as it lies at the start of a buffer that may not yet
// hold all of it. Everything in it is an offset, so that the buffer may move
// between two calls of parse.
type frame struct {
	query query
	pos   int // everything before is parsed
	field int // fields parsed
	key   span
	num   int64 // the n or u argument, or the length of a list
	items int   // entries of the list parsed so far, keys and values
	list  span  // the list's entries
	value [2]span
	// taken[i] is value i where it was read past the buffer, which then
	// continues with what follows the value.
	taken [2][]byte
	cut   [2]int // where they belong in what is in the buffer
	// wants is the length of the value that parse stopped at, if it is a
	// big one that may be taken past the buffer.
	wants int
}

type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// parse continues to parse the request at the start of b. It returns 0 once the
// request is complete, pos being its length, and otherwise how many more bytes
// it needs at least.
func (f *frame) parse(b []byte) (need int, err error) {
	if f.pos == 0 {
		if len(b) == 0 {
			return 1, nil
		}
		f.query = query(b[0])
		if f.query >= numQueries && f.query != qSession {
			return 0, fmt.Errorf("unknown query %d", b[0])
		}
		f.pos = 1
	}
	layout := layouts[f.query]
	f.wants = 0
	for ; f.field < len(layout); f.field++ {
		kind := layout[f.field]
		switch kind {
		case 'u':
			if need = f.pos + 4 - len(b); need > 0 {
				return need, nil
			}
			f.num = int64(binary.LittleEndian.Uint32(b[f.pos:]))
			f.pos += 4
		case 'n':
			if need = f.pos + 8 - len(b); need > 0 {
				return need, nil
			}
			f.num = int64(binary.LittleEndian.Uint64(b[f.pos:]))
			f.pos += 8
		case 'k':
			if f.key, need, err = f.bytes(b, maxKey, "key"); need > 0 || err != nil {
				return need, err
			}
		case 'v':
			at := f.field - 1 // behind the key
			if f.taken[at] != nil {
				f.pos += 8
				f.cut[at] = f.pos
				break
			}
			if f.value[at], need, err = f.bytes(b, maxValue, "value"); need > 0 || err != nil {
				if f.pos+8 <= len(b) && err == nil {
					f.wants = int(binary.LittleEndian.Uint64(b[f.pos:]))
				}
				return need, err
			}
		case 'K', 'P':
			if need, err = f.parseList(b, kind == 'P'); need > 0 || err != nil {
				return need, err
			}
		}
	}
	return 0, nil
}

func (f *frame) parseList(b []byte, pairs bool) (need int, err error) {
	if f.list.from == 0 {
		if need = f.pos + 8 - len(b); need > 0 {
			return need, nil
		}
		n := binary.LittleEndian.Uint64(b[f.pos:])
		if n > maxKeys {
			return 0, fmt.Errorf("list of %d keys, at most %d are allowed", n, maxKeys)
		}
		f.num = int64(n)
		f.pos += 8
		f.list.from = f.pos
	}
	all := int(f.num)
	if pairs {
		all *= 2
	}
	for ; f.items < all; f.items++ {
		limit, what := maxKey, "key"
		if pairs && f.items%2 == 1 {
			limit, what = maxValue, "value"
		}
		if _, need, err = f.bytes(b, limit, what); err != nil {
			return 0, err
		}
		if need > 0 {
			// Each entry to come has a length at least.
			need += 8 * (all - f.items - 1)
			if f.pos+need > maxRequest {
				return 0, fmt.Errorf("request of more than %d bytes", maxRequest)
			}
			return need, nil
		}
	}
	f.list.to = f.pos
	return 0, nil
}

// bytes parses a length and that many bytes.
func (f *frame) bytes(b []byte, limit int, what string) (s span, need int, err error) {
	if need = f.pos + 8 - len(b); need > 0 {
		return s, need, nil
	}
	n := binary.LittleEndian.Uint64(b[f.pos:])
	if n > uint64(limit) {
		return s, 0, fmt.Errorf("%s of %d bytes, at most %d are allowed", what, n, limit)
	}
	from := f.pos + 8
	if need = from + int(n) - len(b); need > 0 {
		return s, need, nil
	}
	f.pos = from + int(n)
	return span{from, f.pos}, 0, nil
}

// next cuts the first string off an encoded list that parse has accepted.
func next(list []byte) (item, rest []byte) {
	n := binary.LittleEndian.Uint64(list)
	return list[8 : 8+n], list[8+n:]
}
