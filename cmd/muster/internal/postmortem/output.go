package postmortem

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/muster-run/muster/internal/safeopen"
	"github.com/muster-run/muster/logs"
)

// A Stream is what one worker has written to its stdout or stderr.
type Stream struct {
	Worker Worker
	Stderr bool
	Path   string // of the file
}

// Streams returns the streams of an attempt that have files, by local rank. Those
// of workers that want refuses are left out.
func (a *Attempt) Streams(stdout, stderr bool, want func(Worker) bool) []Stream {
	var all []Stream
	for _, w := range a.Workers {
		if !want(w) {
			continue
		}
		if w.Stdout != "" && stdout {
			all = append(all, Stream{Worker: w, Path: w.Stdout})
		}
		if w.Stderr != "" && stderr {
			all = append(all, Stream{Worker: w, Stderr: true, Path: w.Stderr})
		}
	}
	return all
}

// Open returns a reader of a stream's last lines, or of all of them if lines is
// negative, those that --log-max-size has moved into segments included. At the end
// it returns io.EOF, and later what was written since. Memory use does not depend
// on the sizes of files.
func (s *Stream) Open(lines int) (io.ReadCloser, error) {
	if lines >= 0 {
		if r, err := openEnd(s.Path, lines); r != nil || err != nil {
			return r, err
		}
	}
	r, err := logs.OpenRotated(s.Path)
	if err != nil || lines < 0 {
		return r, err
	}
	// The lines are not all near the file's end: count them first.
	var n lineCount
	_, err = io.Copy(&n, r)
	r.Close()
	if err != nil {
		return nil, err
	}
	if r, err = logs.OpenRotated(s.Path); err != nil {
		return nil, err
	}
	return &skipLines{ReadCloser: r, n: max(0, int(n)-lines)}, nil
}

const blockSize = 64 << 10

// openEnd opens a file at its last lines; it returns nil if they are not all in it.
func openEnd(path string, lines int) (io.ReadCloser, error) {
	f, _, err := safeopen.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	from, ok, err := logs.LastLines(f, lines)
	if err == nil && ok {
		_, err = f.Seek(from, io.SeekStart)
	}
	if err != nil || !ok {
		f.Close()
		return nil, err
	}
	return &liveFile{f}, nil
}

// A liveFile is a file that grows. One that has become shorter is read from its
// beginning.
type liveFile struct{ *os.File }

func (f *liveFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if err != io.EOF {
		return n, err
	}
	info, statErr := f.Stat()
	at, seekErr := f.Seek(0, io.SeekCurrent)
	if statErr == nil && seekErr == nil && info.Size() < at {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		return f.File.Read(p)
	}
	return n, err
}

// lineCount counts lines; it is one too low if the last has no end.
type lineCount int

func (n *lineCount) Write(p []byte) (int, error) {
	*n += lineCount(bytes.Count(p, []byte{'\n'}))
	return len(p), nil
}

// skipLines leaves out the first n lines.
type skipLines struct {
	io.ReadCloser
	n int
}

func (s *skipLines) Read(p []byte) (int, error) {
	for {
		n, err := s.ReadCloser.Read(p)
		rest := p[:n]
		for s.n > 0 {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				rest = nil
				break
			}
			rest = rest[i+1:]
			s.n--
		}
		if len(rest) > 0 || err != nil {
			return copy(p, rest), err
		}
	}
}
