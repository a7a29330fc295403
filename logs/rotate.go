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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
)

const (
	// MinMaxSize is the least Config.MaxSize, DefaultKeep the default of
	// Config.Keep.
	MinMaxSize  = 1 << 20
	DefaultKeep = 5

	// keptBack is how much at a file's end is never moved into a segment, so that
	// whoever shows the end of a log need not know of segments.
	keptBack = 256 << 10
	// maxSearch is how far back the end of a line is looked for. Longer lines may
	// be divided between two segments.
	maxSearch = 1 << 20
	// fastest is how fast a file is taken to grow at most, in bytes a second;
	// lookMin and lookMax bound how often a growing file is looked at.
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
// One segment is made at a time, by a thread with little priority.
type rotator struct {
	max, keep int64
	log       *slog.Logger
	watcher   *watcher
	wake      chan struct{} // has room for one
	stop      chan struct{} // closed by close
	stopping  atomic.Bool
	done      chan struct{} // closed when run has returned
	told      atomic.Bool   // the log has said that nothing can be freed

	mu    sync.Mutex // guards files
	files []*rotated
}

// A rotated is one file of a rotator.
type rotated struct {
	path  string
	file  *os.File // for reading and punching
	watch watch
	ended atomic.Bool // the workers have ended and nobody follows the file
	tails []*follower // what they have not copied yet stays; they are there until ended

	// The rest is run's own.
	armed      bool
	from       int64     // what is before is in segments
	generation int64     // how often the file was seen truncated
	number     int64     // of the last segment
	slow       time.Time // since when the console holds up a segment; zero: it does not
	told       bool      // the log has said so
	retry      time.Time // do nothing before
}

func newRotator(maxSize int64, keep int, log *slog.Logger) *rotator {
	r := makeRotator(maxSize, keep, log)
	go r.run()
	return r
}

// makeRotator makes a rotator that does not run.
func makeRotator(maxSize int64, keep int, log *slog.Logger) *rotator {
	return &rotator{
		max: maxSize, keep: int64(keep), log: log,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		watcher: newWatcher(log),
	}
}

// open opens a file that a worker is going to write, and tries whether a part of
// it can be freed. It returns nil where it cannot, cannot be opened, or path does not
// name the worker's file any more.
func (r *rotator) open(path string, worker *os.File) *rotated {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		if err = same(file, worker); err == nil {
			err = punch(file, 0, 1)
		}
		if err == nil {
			return &rotated{path: path, file: file, watch: watch{wake: r.wake}}
		}
		file.Close()
	}
	r.cannot(path, err)
	return nil
}

// same returns an error unless both are one file.
func same(a, b *os.File) error {
	x, err := a.Stat()
	if err != nil {
		return err
	}
	y, err := b.Stat()
	if err == nil && !os.SameFile(x, y) {
		err = errors.New("somebody has put another file there")
	}
	return err
}

// cannot says once that files cannot be made smaller.
func (r *rotator) cannot(path string, err error) {
	if !r.told.Swap(true) {
		r.log.Warn("log files cannot be rotated here and grow without limit; name a directory of another file system with --log-dir", "path", path, "error", err)
	}
}

// add takes files to watch over.
func (r *rotator) add(files []*rotated) {
	r.mu.Lock()
	r.files = append(r.files, files...)
	r.mu.Unlock()
	r.nudge()
}

// end says that nobody writes or follows these files any more.
func (r *rotator) end(files []*rotated) {
	for _, f := range files {
		f.ended.Store(true)
	}
	r.nudge()
}

func (r *rotator) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// close ends the rotator. A segment that is not whole is given up: its output is
// still in the file.
func (r *rotator) close() {
	r.stopping.Store(true)
	close(r.stop)
	<-r.done
	r.watcher.close()
	for _, f := range r.files {
		f.file.Close()
	}
}

func (r *rotator) run() {
	defer close(r.done)
	timer := time.NewTimer(time.Hour)
	for {
		next := r.look()
		if r.stopping.Load() {
			return
		}
		var over <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			over = timer.C
		}
		select {
		case <-r.wake:
		case <-over:
		case <-r.stop:
			return
		}
		// A file that grows is not looked at with each line.
		timer.Reset(r.lull())
		select {
		case <-timer.C:
		case <-r.stop:
			return
		}
	}
}

// lull is how long no file can have become too large.
func (r *rotator) lull() time.Duration {
	room := r.max
	for _, f := range r.snapshot() {
		if f.armed {
			room = min(room, f.from+r.max-f.size())
		}
	}
	if room > fastest {
		return lookMax
	}
	return min(max(time.Duration(room)*time.Second/fastest, lookMin), lookMax)
}

func (r *rotator) snapshot() []*rotated {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.files)
}

// look makes the segments that are due. It returns after how long to look again,
// 0 for when a file changes.
func (r *rotator) look() (next time.Duration) {
	soon := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	for again := true; again && !r.stopping.Load(); {
		again = false
		for _, f := range r.snapshot() {
			if f.armed && !f.watch.fired.Load() && !f.ended.Load() {
				continue
			}
			f.armed = false
			ended := f.ended.Load()
			if wait := time.Until(f.retry); wait > 0 && !ended {
				soon(wait)
				continue
			}
			switch cut, err := r.rotate(f, ended); {
			case err != nil && !ended:
				f.retry = time.Now().Add(retryAfter)
				soon(retryAfter)
			case cut:
				again = true
			case ended:
				r.remove(f)
			case f.size()-f.from > r.max: // the console is slow
				soon(lookMax)
			case !r.arm(f):
				soon(lookMax)
			}
		}
	}
	return next
}

// arm lets the file's next change wake the rotator.
func (r *rotator) arm(f *rotated) bool {
	f.watch.fired.Store(false)
	f.armed = r.watcher.arm(&f.watch, descriptorPath(f.file), false) || r.watcher.arm(&f.watch, f.path, false)
	return f.armed && f.size()-f.from <= r.max
}

func (r *rotator) remove(f *rotated) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = slices.DeleteFunc(r.files, func(x *rotated) bool { return x == f })
	f.file.Close()
}

func (f *rotated) size() int64 {
	fi, err := f.file.Stat()
	if err != nil {
		return 0
	}
	return fi.Size()
}

// rotate makes the next segment of a file, if it is due.
func (r *rotator) rotate(f *rotated, ended bool) (cut bool, err error) {
	size := f.size()
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
		for _, t := range f.tails {
			limit = min(limit, t.start.Load())
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
	// The thread ends with its goroutine, and with it the priority.
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		lowerPriority()
		err = r.cut(f, segment{gap: gap, generation: f.generation, from: f.from, to: end})
	}()
	<-finished
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
func (r *rotator) cut(f *rotated, s segment) error {
	temp := f.path + ".gz.tmp"
	if err := r.write(f, s, temp); err != nil {
		os.Remove(temp)
		return err
	}
	f.number++
	path := segmentPath(f.path, f.number)
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	err := fmt.Errorf("it has become shorter than %d bytes", s.to)
	if f.size() >= s.to {
		err = punch(f.file, s.from, s.to-s.from)
	}
	if err != nil {
		os.Remove(path)
		return err
	}
	f.from = s.to
	if old := f.number - r.keep; old > 0 {
		if err := os.Remove(segmentPath(f.path, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// write makes a segment's file, which is on the disk when it returns: what it
// holds is removed from the log next.
func (r *rotator) write(f *rotated, s segment, path string) error {
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
		if r.stopping.Load() {
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
