package logs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// markSize is how much of what a source has read last it compares with the file, in bytes.
const markSize = 64

// A source reads one log file while its worker appends to it. The file may be emptied meanwhile, as by
// logrotate with copytruncate, which copies it to a file beside it before. A source sees that by what it
// has read last: that is in the file no more, however much the worker has written since. It then reads the
// rest of the copy, where there is one, and continues at the beginning of the file.
type source struct {
	path string
	open func(path string) (*os.File, fs.FileInfo, error)

	live *os.File  // the worker's file; nil until it is there
	copy *os.File  // of the file before it was emptied, until all of that is read; else nil
	end  int64     // what is before was read
	mark []byte    // the last of that
	read time.Time // when something was read last
}

// begin opens the file, if that is still to be done.
func (s *source) begin() (err error) {
	if s.live == nil {
		s.live, _, err = s.open(s.path)
	}
	return err
}

// seek makes an offset the one to read from, or the file's beginning if it is shorter.
func (s *source) seek(to int64) {
	s.mark = make([]byte, min(to, markSize))
	n, _ := s.live.ReadAt(s.mark, to-int64(len(s.mark)))
	if s.end = to; n < len(s.mark) {
		s.rewind()
	}
}

// rewind continues at the beginning of the file.
func (s *source) rewind() {
	if s.copy != nil {
		s.copy.Close()
	}
	s.copy, s.end, s.mark = nil, 0, nil
}

func (s *source) close() {
	s.rewind()
	if s.live != nil {
		s.live.Close()
		s.live = nil
	}
}

// reading is the file or its copy.
func (s *source) reading() *os.File {
	if s.copy != nil {
		return s.copy
	}
	return s.live
}

// next reads at an offset that is not a higher than end, and returns how much there is. It returns emptied if
// there is no more and the reader has to rewind.
func (s *source) next(b []byte, at int64) (n int, emptied bool, err error) {
	for {
		n, err = pread(s.reading(), b, at)
		more := at+int64(n) > s.end
		switch {
		case err != nil:
			return 0, false, err
		case s.copy != nil && !more:
			return 0, true, nil
		case s.copy == nil && !s.marked(s.live):
			if s.copy = s.findCopy(); s.copy == nil {
				return 0, true, nil
			}
			continue
		case more:
			s.saw(b[:n], at)
		}
		return n, false, nil
	}
}

// pread reads at an offset. It is not ReadAt, which reads again to see the end.
func pread(f *os.File, b []byte, at int64) (int, error) {
	for {
		n, err := syscall.Pread(int(f.Fd()), b, at)
		if err == syscall.EINTR {
			continue
		}
		return max(n, 0), err
	}
}

// saw remembers the end of what was read at an offset.
func (s *source) saw(b []byte, at int64) {
	before := s.mark[:max(0, len(s.mark)-int(s.end-at))]
	s.mark = append(before, b[max(0, len(b)-markSize):]...)
	s.mark = s.mark[max(0, len(s.mark)-markSize):]
	s.end, s.read = at+int64(len(b)), time.Now()
}

// marked reports whether a file has what was read last.
func (s *source) marked(f *os.File) bool {
	var there [markSize]byte
	n, err := pread(f, there[:len(s.mark)], s.end-int64(len(s.mark)))
	return err != nil || bytes.Equal(there[:n], s.mark)
}

// findCopy opens the newest copy of the file that has what was read last, such as stdout.log.1 or
// stdout.log-20261127; nil if there is none.
func (s *source) findCopy() *os.File {
	dir, name := filepath.Split(s.path)
	entries, _ := os.ReadDir(filepath.Clean(dir + "."))
	var newest *os.File
	since := s.read.Add(-time.Second) // an older one is of another time; clocks of disks differ
	for _, e := range entries {
		if suffix, ok := strings.CutPrefix(e.Name(), name); !ok || suffix == "" || !strings.Contains(".-", suffix[:1]) {
			continue
		}
		f, info, err := s.open(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if info.Size() < s.end || !info.ModTime().After(since) || !s.marked(f) {
			f.Close()
			continue
		}
		if newest != nil {
			newest.Close()
		}
		newest, since = f, info.ModTime()
	}
	return newest
}

// changed reports whether there may be something to read, or an error. It opens the file if that
// is there by now.
func (s *source) changed() bool {
	if s.live == nil {
		return !errors.Is(s.begin(), fs.ErrNotExist)
	}
	info, err := s.live.Stat()
	return s.copy != nil || err == nil && info.Size() != s.end || !s.marked(s.live)
}

// lastLines returns where the last lines of a file begin, in bytes.
func lastLines(f *os.File, lines int) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if lines == 0 {
		return size, nil
	}
	buf := make([]byte, 64<<10)
	for end := size; end > 0; {
		start := max(0, end-int64(len(buf)))
		n, err := f.ReadAt(buf[:end-start], start)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			at := start + int64(i) + 1
			if buf[i] != '\n' || at == size {
				continue
			}
			if lines--; lines == 0 {
				return at, nil
			}
		}
		end = start
	}
	return 0, nil
}
