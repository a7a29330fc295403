package logs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
)

const (
	// MinMaxSize is the least Config.MaxSize but 0, in bytes.
	MinMaxSize = 1 << 20
	// defaultKeep is the default of Config.Keep.
	defaultKeep = 5

	// keptBack is how much at a file's end is never moved into a segment, so that
	// whoever shows the end of a log need not know of segments.
	keptBack = 256 << 10
	// maxSearch is how far back the end of a line is looked for. Longer lines may
	// be divided between two segments.
	maxSearch = 1 << 20
	// fastest is how fast a file is taken to grow at most, in bytes a second;
	// lookMin and lookMax bound how often a file is looked at.
	fastest = 1 << 30
	lookMin = 50 * time.Millisecond
	lookMax = time.Second
	// slowAfter is for how long the console may be behind before the log says so.
	slowAfter = 10 * time.Second
	// retryAfter is how long to wait where there was no room for a segment.
	retryAfter = 10 * time.Second
)

// A rotator moves what workers' files hold too much into compressed segments.
// The worker goes on to write its file; what a segment holds is punched out of
// it, so that the disk has room again and no offset changes.
//
// Each file has a goroutine, which looks at its size now and then. One segment is
// made at a time, by a thread with little priority.
type rotator struct {
	max, keep int64
	log       *slog.Logger
	cannot    sync.Once      // says that a file cannot be made smaller
	one       sync.Mutex     // held by who makes a segment
	stop      chan struct{}  // closed by close
	all       sync.WaitGroup // the files' goroutines
}

// A rotated is one file of a rotator. The goroutine that run is called in owns it from
// then on: nobody else touches what is below ended, and it closes file.
type rotated struct {
	r     *rotator
	path  string
	file  *os.File      // for reading and punching
	tails []*follower   // what they have not copied yet stays, until ended or their console is closed
	ended chan struct{} // closed when the workers have ended and nobody follows the file

	from       int64         // what is before is in segments
	size       int64         // when it was looked at last
	pause      time.Duration // between the last two looks
	generation int64         // how often the file was seen truncated
	number     int64         // of the last segment
	slow       time.Time     // since when the console holds up a segment; zero: it does not
	told       bool          // the log has said so
}

func newRotator(maxSize int64, keep int, log *slog.Logger) *rotator {
	return &rotator{max: maxSize, keep: int64(keep), log: log, stop: make(chan struct{})}
}

// open opens a file that a worker is going to write, and tries whether a part of
// it can be freed. It returns nil where it cannot, cannot be opened, or path does not
// name the worker's file any more.
func (r *rotator) open(path string, worker *os.File) *rotated {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		if !sameFile(file, worker) {
			err = errors.New("somebody has put another file there")
		} else if err = punch(file, 0, 1); err == nil {
			return &rotated{r: r, path: path, file: file, ended: make(chan struct{})}
		}
		file.Close()
	}
	r.cannot.Do(func() {
		r.log.Warn("log files cannot be rotated here and grow without limit; name a directory of another file system with --log-dir", "path", path, "error", err)
	})
	return nil
}

// close ends the rotator. A segment that is not whole is given up: its output is
// still in the file.
func (r *rotator) close() {
	close(r.stop)
	r.all.Wait()
}

func (r *rotator) stopping() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// run looks at the file until its workers have ended, and a last time then.
func (f *rotated) run() {
	defer f.file.Close()
	for ended := false; !ended; {
		next := time.NewTimer(f.look(false))
		select {
		case <-next.C:
		case <-f.ended:
			ended = true
			f.look(true)
		case <-f.r.stop:
			ended = true
		}
		next.Stop()
	}
}

// look makes the segments that are due, and returns after how long to look again.
func (f *rotated) look(ended bool) time.Duration {
	before := f.size
	for {
		switch cut, err := f.rotate(ended); {
		case err != nil:
			return retryAfter
		case cut:
			continue
		}
		room := max(f.from+f.r.max-f.size, 0)
		pause := time.Duration(min(room, fastest)) * time.Second / fastest
		if f.size == before || room == 0 { // it is silent, or the console slow
			pause = 2 * f.pause
		}
		f.pause = min(max(pause, lookMin), lookMax)
		return f.pause
	}
}

// rotate makes the next segment of a file, if it is due.
func (f *rotated) rotate(ended bool) (cut bool, err error) {
	fi, err := f.file.Stat()
	if err != nil {
		return false, err
	}
	r, size := f.r, fi.Size()
	f.size = size
	f.restartIf(size)
	if size-f.from <= r.max {
		return false, nil
	}
	limit, gap := min(f.from+r.max, size)-keptBack, false
	// What Keep would remove as soon as it is in a segment is not compressed.
	if kept := r.keep * (r.max - keptBack); size-f.from > 2*r.max+kept {
		limit, gap = size-r.max-kept, true
	}
	if !ended {
		for _, x := range f.tails {
			if !x.t.to.closed.Load() {
				limit = min(limit, x.start.Load())
			}
		}
	}
	if limit-f.from < (r.max-keptBack)/2 {
		if f.slow.IsZero() {
			f.slow = time.Now()
		}
		if !f.told && time.Since(f.slow) > slowAfter {
			f.told = true
			r.log.Warn("a log file stays larger than its limit until the console has its output", "path", f.path, "size", size-f.from)
		}
		return false, nil
	}
	f.slow = time.Time{}
	end := f.lineEnd(limit)
	r.one.Lock()
	defer r.one.Unlock()
	var cutting sync.WaitGroup
	cutting.Go(func() {
		lowerPriority() // the thread ends with its goroutine, and with it the priority
		err = f.cut(segment{gap: gap, generation: f.generation, from: f.from, to: end})
	})
	cutting.Wait()
	if err != nil && !errors.Is(err, errStopping) {
		r.log.Warn("cannot rotate a log file", "path", f.path, "error", err)
	}
	return err == nil, err
}

// restartIf begins again if the file has become shorter, or has done so and is
// long again: what was punched out is zero up to the last byte.
func (f *rotated) restartIf(size int64) {
	if f.from == 0 {
		return
	}
	var b [1]byte
	if size >= f.from {
		if n, err := f.file.ReadAt(b[:], f.from-1); n == 0 || err != nil || b[0] == 0 {
			return
		}
	}
	f.from = 0
	f.generation++
}

// lineEnd returns the end of the last line that ends before limit, or limit.
func (f *rotated) lineEnd(limit int64) int64 {
	buf := make([]byte, 64<<10)
	for to := limit; to > f.from && limit-to < maxSearch; {
		from := max(to-int64(len(buf)), f.from)
		n, err := f.file.ReadAt(buf[:to-from], from)
		if err != nil || int64(n) < to-from {
			break
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return from + int64(i) + 1
		}
		to = from
	}
	return limit
}

var errStopping = errors.New("the job ends")

// cut moves a part of the file, from f.from on, into its next segment.
func (f *rotated) cut(s segment) error {
	temp := f.path + ".gz.tmp"
	err := f.write(s, temp)
	if err == nil {
		f.number++
		err = os.Rename(temp, segmentPath(f.path, f.number))
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	fi, err := f.file.Stat()
	if err == nil && fi.Size() < s.to {
		err = fmt.Errorf("it has become shorter than %d bytes", s.to)
	}
	if err == nil {
		err = punch(f.file, s.from, s.to-s.from)
	}
	if err != nil {
		os.Remove(segmentPath(f.path, f.number))
		return err
	}
	f.from = s.to
	if old := f.number - f.r.keep; old > 0 {
		if err := os.Remove(segmentPath(f.path, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// write makes a segment's file, which is on the disk when it returns: what it
// holds is removed from the log next.
func (f *rotated) write(s segment, path string) error {
	out, err := safeopen.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	z.Header = gzip.Header{Name: filepath.Base(f.path), Extra: s.extra()}
	buf := make([]byte, blockSize)
	for at := s.from; at < s.to && !s.gap; {
		if f.r.stopping() {
			return errStopping
		}
		n, err := f.file.ReadAt(buf[:min(int64(len(buf)), s.to-at)], at)
		if n == 0 {
			return fmt.Errorf("it has become shorter: %w", err)
		}
		if _, err := z.Write(buf[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	if err := z.Close(); err != nil {
		return err
	}
	return out.Sync()
}
