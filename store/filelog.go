package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/muster-run/muster/store/internal/kv"
)

// The log of a File: a header, then records of changes, each of which is there
// as a whole or not at all. docs/filestore.md describes it.
const (
	headerSize = 16
	version    = 1
	recordHead = 8       // length and checksum of what follows
	firstDue   = 1 << 20 // a shorter log is not worth rewriting
	maxRecord  = 1 << 30
)

// The changes that a record is made of: one byte, a key, and a value for all
// but the last two.
const (
	opSet byte = iota + 1
	opAppend
	opPush
	opDelete
	opPop
)

func appendHeader(b []byte) []byte {
	b = append(b, "muster store"...)
	return binary.LittleEndian.AppendUint32(b, version)
}

func readHeader(in io.Reader, path string) error {
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(in, b); err != nil {
		return fmt.Errorf("store: read %s: %w", path, err)
	}
	if !bytes.Equal(b, appendHeader(nil)) {
		return &DamagedError{path, 0, fmt.Sprintf("it begins with %q, which is no store of this version", b)}
	}
	return nil
}

// changes is a record in the making, and the data it is about.
type changes struct {
	m      *kv.Map // locked; not to be changed
	record []byte
}

func (c *changes) set(key string, value []byte) { c.add(opSet, key, value) }

func (c *changes) add(op byte, key string, value []byte) {
	c.record = appendChange(c.record, op, key, value)
}

func appendChange(b []byte, op byte, key string, value []byte) []byte {
	b = append(b, op)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	if op <= opPush {
		b = binary.AppendUvarint(b, uint64(len(value)))
		b = append(b, value...)
	}
	return b
}

// seal fills in the record's head.
func (c *changes) seal() error {
	if n := len(c.record) - recordHead; n > maxRecord {
		return fmt.Errorf("store: change of %d bytes, at most %d fit in one", n, maxRecord)
	}
	seal(c.record)
	return nil
}

func seal(record []byte) {
	payload := record[recordHead:]
	binary.LittleEndian.PutUint32(record, uint32(len(payload)))
	binary.LittleEndian.PutUint32(record[4:], crc32.ChecksumIEEE(payload))
}

// errUnfinished says that the last record of a log is not all there.
var errUnfinished = errors.New("unfinished record")

// readRecord reads a record from a log of which left bytes are left.
func readRecord(in io.Reader, left int64) (payload []byte, err error) {
	if left < recordHead {
		return nil, errUnfinished
	}
	var head [recordHead]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.LittleEndian.Uint32(head[:]))
	left -= recordHead
	switch {
	case size == 0 || size > maxRecord:
		return nil, fmt.Errorf("record of %d bytes", size)
	case size > left:
		return nil, errUnfinished
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(in, payload); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(payload) != binary.LittleEndian.Uint32(head[4:]) {
		if size == left {
			return nil, errUnfinished
		}
		return nil, errors.New("wrong checksum")
	}
	return payload, nil
}

// applyTo makes the changes of a record. The map is locked.
func applyTo(m *kv.Map, payload []byte) error {
	for len(payload) > 0 {
		op := payload[0]
		if op < opSet || op > opPop {
			return fmt.Errorf("unknown change %d", op)
		}
		key, rest, err := cut(payload[1:])
		if err != nil {
			return err
		}
		var value kv.Value
		if op <= opPush {
			if value.Bytes, rest, err = cut(rest); err != nil {
				return err
			}
		}
		payload = rest
		switch op {
		case opSet:
			m.Set(string(key), value)
		case opAppend:
			m.Append(string(key), value)
		case opPush:
			m.Push(string(key), value)
		case opDelete:
			m.Delete(string(key))
		case opPop:
			m.Pop(string(key))
		}
	}
	return nil
}

// cut takes a length and that many bytes off the front.
func cut(b []byte) (item, rest []byte, err error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, errors.New("a length is wrong")
	}
	return b[k : k+int(n)], b[k+int(n):], nil
}

// snapshot returns a log that leads to the data as it is.
func snapshot(m *kv.Map) []byte {
	log := appendHeader(nil)
	record := make([]byte, recordHead)
	flush := func(atLeast int) {
		if len(record) > atLeast {
			seal(record)
			log = append(log, record...)
			record = record[:recordHead]
		}
	}
	for _, key := range m.Keys() {
		value, _ := m.Get(key)
		record = appendChange(record, opSet, key, value)
		flush(firstDue)
	}
	for _, key := range m.QueueKeys() {
		for _, item := range m.Queue(key) {
			record = appendChange(record, opPush, key, item)
			flush(firstDue)
		}
	}
	flush(recordHead)
	return log
}
