package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A segment is a part of a log file that was moved out of it.
type segment struct {
	gap        bool  // it was thrown away: later segments would have replaced it
	generation int64 // how often the file had been truncated
	from, to   int64 // offsets in the file
}

// extra is the field of a gzip header that says what the segment is.
func (s segment) extra() []byte {
	b := []byte{'M', 'u', 24, 0}
	if s.gap {
		b[1] = 'x'
	}
	for _, n := range []int64{s.generation, s.from, s.to} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func (s *segment) parse(extra []byte) error {
	s.gap = len(extra) > 1 && extra[1] == 'x'
	if len(extra) != 28 || extra[0] != 'M' || !s.gap && extra[1] != 'u' || extra[2] != 24 || extra[3] != 0 {
		return errors.New("no segment of a log: its header does not say what it holds")
	}
	for i, n := range []*int64{&s.generation, &s.from, &s.to} {
		*n = int64(binary.LittleEndian.Uint64(extra[4+8*i:]))
	}
	if s.from < 0 || s.to < s.from || s.generation < 0 {
		return fmt.Errorf("no segment of a log: from %d to %d", s.from, s.to)
	}
	return nil
}

// segmentPath names a segment of a file; names sort by age.
func segmentPath(path string, number int64) string {
	return fmt.Sprintf("%s.%06d.gz", path, number)
}
