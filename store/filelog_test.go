package store

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/muster-run/muster/store/internal/kv"
)

// FuzzFileLog feeds the decoder of logs with what no store has written.
func FuzzFileLog(f *testing.F) {
	m := kv.New()
	m.Set("key", kv.Value{Bytes: []byte("value")})
	m.Push("queue", kv.Value{Bytes: []byte("item")})
	f.Add(snapshot(m))
	c := &changes{record: make([]byte, recordHead)}
	c.set("key", bytes.Repeat([]byte("x"), 200))
	c.add(opAppend, "key", []byte("more"))
	c.add(opPop, "queue", nil)
	c.add(opDelete, "key", nil)
	seal(c.record)
	f.Add(append(appendHeader(nil), c.record...))
	f.Add([]byte("muster store\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff"))
	f.Fuzz(func(t *testing.T, log []byte) {
		in := bytes.NewReader(log)
		if readHeader(in, "log") != nil {
			return
		}
		m := kv.New()
		for {
			left := int64(in.Len())
			payload, err := readRecord(in, left)
			if errors.Is(err, errUnfinished) && left == 0 {
				break
			}
			if err == nil {
				err = applyTo(m, payload)
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal("read beyond the end")
			}
			if err != nil {
				return
			}
		}
		// What was read can be written and read again.
		again := snapshot(m)
		in = bytes.NewReader(again[headerSize:])
		n := kv.New()
		for in.Len() > 0 {
			payload, err := readRecord(in, int64(in.Len()))
			if err != nil {
				t.Fatal(err)
			}
			if err := applyTo(n, payload); err != nil {
				t.Fatal(err)
			}
		}
		if m.Len() != n.Len() || len(m.QueueKeys()) != len(n.QueueKeys()) {
			t.Fatalf("%d keys became %d, %d queues %d", m.Len(), n.Len(), len(m.QueueKeys()), len(n.QueueKeys()))
		}
	})
}

// FuzzFilePayload is the same for what the checksum usually keeps away.
func FuzzFilePayload(f *testing.F) {
	f.Add(appendChange(appendChange(nil, opSet, "k", []byte("v")), opPop, "q", nil))
	f.Add([]byte{opSet, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, payload []byte) {
		_ = applyTo(kv.New(), payload)
	})
}
