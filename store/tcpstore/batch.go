package tcpstore

import (
	"encoding/binary"
	"net"
)

const (
	bigValue = 4096     // from here on values travel without a copy
	mostKept = 64 << 10 // of a batch's memory between two uses
)

// A batch is what is to be written with one call: the server's replies, or a client's
// request. Big values are not copied.
type batch struct {
	out    []byte
	from   int         // out[from:] is not yet in chain
	chain  net.Buffers // what comes before, with big values among it
	queued int         // bytes in chain
}

func (b *batch) byte(x byte)   { b.out = append(b.out, x) }
func (b *batch) int(n int64)   { b.out = appendInt(b.out, n) }
func (b *batch) len() int      { return len(b.out) - b.from + b.queued }
func (b *batch) text(s string) { b.out = append(b.out, s...) }

// value appends a length and a value, which nobody changes if it is a big one.
func (b *batch) value(value []byte) {
	if len(value) >= bigValue {
		b.shared(value)
		return
	}
	b.int(int64(len(value)))
	b.out = append(b.out, value...)
}

// shared appends a length and a value that nobody changes, without a copy.
func (b *batch) shared(value []byte) {
	b.int(int64(len(value)))
	if len(value) > 0 {
		b.link()
		b.chain = append(b.chain, value)
		b.queued += len(value)
	}
}

// take moves what other holds to the end of this batch.
func (b *batch) take(other *batch) {
	if len(other.chain) == 0 {
		b.out = append(b.out, other.out...)
		other.out, other.from = other.out[:0], 0
		return
	}
	other.link()
	b.link()
	b.chain, b.queued = append(b.chain, other.chain...), b.queued+other.queued
	*other = batch{}
}

// link moves what is in out to the chain.
func (b *batch) link() {
	if len(b.out) > b.from {
		b.chain = append(b.chain, b.out[b.from:len(b.out):len(b.out)])
		b.queued += len(b.out) - b.from
		b.from = len(b.out)
	}
}

// writeTo writes all of the batch, if it holds anything, and empties it.
func (b *batch) writeTo(nc net.Conn) (err error) {
	switch {
	case len(b.chain) > 0:
		b.link()
		chain := b.chain
		_, err = chain.WriteTo(nc)
		if clear(b.chain); cap(b.chain) > 1024 {
			b.chain = nil
		}
		b.chain, b.queued = b.chain[:0], 0
	case len(b.out) > 0:
		_, err = nc.Write(b.out)
	}
	if cap(b.out) > mostKept {
		b.out = nil
	}
	b.out, b.from = b.out[:0], 0
	return err
}

func appendInt(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }
