package logs

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-run/muster/internal/safeopen"
)

// OpenRotated opens a log file of a worker with the segments that Config.MaxSize
// has made of it: the reader returns their bytes and then those of the file, in
// the order in which they were written and each once, also while the worker
// writes and segments are made or removed. Only what is in a removed segment is
// left out. A segment that is a link, or no regular file, is an error.
//
// A Read at the end returns io.EOF; a later one returns what was written since.
// A file without segments is read as it is. Errors are fs.ErrNotExist where there
// is neither file nor segment, and from Read those of a damaged segment. Reader
// and Close are not for concurrent use; the caller closes it.
func OpenRotated(path string) (io.ReadCloser, error) {
	r, err := openRotated(path, os.Open)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(r, 64<<10), r}, nil
}

func openRotated(path string, open func(string) (*os.File, error)) (*rotatedReader, error) {
	r := &rotatedReader{path: path, open: open}
	var err error
	if r.live, err = open(path); err == nil {
		return r, nil
	}
	r.live = nil
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	numbers, listErr := r.later()
	if listErr != nil {
		return nil, listErr
	}
	if len(numbers) == 0 {
		return nil, err
	}
	return r, nil
}

// A rotatedReader reads a file's segments and then the file.
//
// A segment has its name before its bytes are punched out of the file. So what
// was read from the file is good if no new segment is there afterwards.
type rotatedReader struct {
	path string
	open func(path string) (*os.File, error) // opens the file, not its segments

	live       *os.File // nil if there is none
	plain      bool     // it has no segments, and gets none
	off        int64    // in the file, of the next byte
	number     int64    // of the last segment that was looked at
	generation int64
	size       int64 // of the file, when it was looked at last

	part  *os.File // the segment that is read, or nil
	z     *gzip.Reader
	is    segment
	lost  int64  // bytes that were passed over, since their segment is gone
	sum   uint32 // of the last segment that was read, when doubt is true
	doubt bool   // what is in the file where the segment was is not known
}

func (r *rotatedReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if r.part != nil {
			n, err := r.z.Read(p)
			r.off += int64(n)
			if err == io.EOF {
				err = r.endPart()
			} else if err != nil {
				err = fmt.Errorf("%s: %w", r.part.Name(), err)
			}
			if n > 0 || err != nil {
				return n, err
			}
			continue
		}
		n, from, err := r.readLive(p)
		var numbers []int64
		if !r.plain {
			var listErr error
			if numbers, listErr = r.later(); listErr != nil {
				return 0, listErr
			}
		}
		if len(numbers) > 0 {
			if err := r.begin(numbers[0]); err != nil {
				return 0, err
			}
			continue
		}
		if err != nil {
			return 0, err
		}
		if from > r.off {
			r.lost += from - r.off
		}
		r.off = from + int64(n)
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

// Close closes the reader.
func (r *rotatedReader) Close() error {
	if r.part != nil {
		r.part.Close()
	}
	if r.live != nil {
		return r.live.Close()
	}
	return nil
}

// readLive reads from the file, and returns from where.
func (r *rotatedReader) readLive(p []byte) (n int, from int64, err error) {
	if r.live == nil {
		if r.live, err = r.open(r.path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return 0, r.off, err
		}
	}
	from = r.off
	fi, err := r.live.Stat()
	if err != nil {
		return 0, from, err
	}
	if r.size = fi.Size(); r.size < from || r.doubt && r.restarted() {
		r.generation++
		from = 0
	}
	r.doubt = false
	if n, err = readAt(r.live, p, from); n == 0 || p[0] != 0 {
		return n, from, err
	}
	// A hole is there where segments were removed by hand. (XFS may take for a
	// hole, for a moment, what is being written.)
	at, err := nextData(r.live, from)
	if err != nil || at == from {
		return n, from, nil
	}
	n, err = readAt(r.live, p, at)
	// The hole's last bytes are in a block with others.
	zeros := n - len(bytes.TrimLeft(p[:n], "\x00"))
	return copy(p, p[zeros:n]), at + int64(zeros), err
}

// readAt is f.ReadAt without io.EOF.
func readAt(f *os.File, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// restarted reports whether the file holds something else where its last segment
// was. Most often that is a hole; an agent that was killed at the wrong moment has
// left what the segment holds.
func (r *rotatedReader) restarted() bool {
	var b [1]byte
	if n, err := r.live.ReadAt(b[:], r.is.to-1); n == 0 || err != nil || b[0] == 0 {
		return false
	}
	sum := crc32.NewIEEE()
	n, err := io.Copy(sum, io.NewSectionReader(r.live, r.is.from, r.is.to-r.is.from))
	return err == nil && n == r.is.to-r.is.from && sum.Sum32() != r.sum
}

// later returns the numbers of segments that were not looked at yet, in order.
func (r *rotatedReader) later() ([]int64, error) {
	dir, name := filepath.Split(r.path)
	d, err := os.Open(filepath.Clean(dir + "."))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, s := range names {
		s, ok := strings.CutPrefix(s, name+".")
		if !ok {
			continue
		}
		if s, ok = strings.CutSuffix(s, ".gz"); !ok {
			continue
		}
		n, err := strconv.ParseUint(s, 10, 62)
		if err == nil && int64(n) > r.number {
			numbers = append(numbers, int64(n))
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// begin opens a segment, unless it is gone or was read from the file before.
func (r *rotatedReader) begin(number int64) error {
	r.number = number
	path := segmentPath(r.path, number)
	part, _, err := safeopen.Open(path) // others may have named it
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	z, err := gzip.NewReader(part)
	var s segment
	if err == nil {
		err = s.parse(z.Extra)
	}
	if err != nil {
		part.Close()
		return fmt.Errorf("%s: %w", path, err)
	}
	if s.generation > r.generation {
		r.generation, r.off = s.generation, s.from
	}
	if s.to <= r.off || s.gap {
		r.lost += max(0, s.to-r.off)
		r.off = max(r.off, s.to)
		return part.Close()
	}
	r.part, r.z, r.is = part, z, s
	if s.from < r.off {
		if _, err = io.CopyN(io.Discard, z, r.off-s.from); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	r.lost += max(0, s.from-r.off)
	r.off = max(r.off, s.from)
	return nil
}

// endPart closes the segment, which was read to its end.
func (r *rotatedReader) endPart() error {
	part := r.part
	r.part = nil
	defer part.Close()
	if r.off != r.is.to {
		return fmt.Errorf("%s: it holds %d bytes, not %d", part.Name(), r.off-r.is.from, r.is.to-r.is.from)
	}
	fi, err := part.Stat()
	if err != nil {
		return err
	}
	var end [8]byte // sum and length
	_, err = part.ReadAt(end[:], fi.Size()-int64(len(end)))
	r.sum, r.doubt = binary.LittleEndian.Uint32(end[:]), err == nil
	return err
}

// seekLines goes to the last lines, from the beginning of a file; not at all if lines is negative.
func (r *rotatedReader) seekLines(lines int) error {
	if lines < 0 {
		return nil
	}
	begin := *r
	if r.live != nil {
		from, ok, err := lastLines(r.live, lines)
		if ok || err != nil {
			r.off = max(r.off, from)
			return err
		}
	}
	// They are not all near the file's end: count them first.
	n, open := 0, false
	err := begin.eachBlock(func(b []byte, _ *rotatedReader) bool {
		n, open = n+bytes.Count(b, []byte{'\n'}), b[len(b)-1] != '\n'
		return true
	})
	if open {
		n++
	}
	if n -= lines; n <= 0 || err != nil {
		return err
	}
	return begin.eachBlock(func(b []byte, at *rotatedReader) bool {
		rest := b
		for ; n > 0; n-- {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				return true
			}
			rest = rest[i+1:]
		}
		r.off, r.generation, r.number = at.off-int64(len(rest)), at.generation, max(0, at.number-1)
		return false
	})
}

// eachBlock calls f with what there is, and the reader behind it, until f returns false. r stays
// where it is.
func (r rotatedReader) eachBlock(f func(b []byte, r *rotatedReader) bool) error {
	live := r.live
	defer func() {
		if r.part != nil {
			r.part.Close()
		}
		if r.live != live {
			r.live.Close()
		}
	}()
	buf := make([]byte, blockSize)
	for {
		n, err := r.Read(buf)
		if n > 0 && !f(buf[:n], &r) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// lastLines returns where the last lines of a file begin, in bytes; false if there are not as many, or
// what was there was moved into segments, and where what there is begins.
func lastLines(f *os.File, lines int) (from int64, ok bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	size := info.Size()
	if lines == 0 {
		return size, true, nil
	}
	buf := make([]byte, 64<<10)
	have, first := 0, int64(math.MaxInt64)
	for end := size; end > 0; {
		start := max(0, end-int64(len(buf)))
		n, err := f.ReadAt(buf[:end-start], start)
		if err != nil && err != io.EOF {
			return 0, false, err
		}
		for i := n - 1; i >= 0; i-- {
			at := start + int64(i) + 1
			if buf[i] == 0 {
				return min(first, size), false, nil
			}
			if buf[i] != '\n' || at == size {
				continue
			}
			first = at
			if have++; have == lines {
				return at, true, nil
			}
		}
		end = start
	}
	return 0, true, nil
}
