package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-run/muster/internal/safeopen"
)

const (
	// blockSize is how much of a file is read at once, flushSize how much
	// output is collected before it is written. They bound memory, not lines.
	blockSize = 256 << 10
	flushSize = 256 << 10
	// longUnit is the length from which a begun line is not read again when
	// more of it arrives; at its end it is copied from the file piece by piece.
	longUnit = 64 << 10
	// gap is how long a Tail that copies without rest lets output come together.
	// A line after a longer pause does not wait.
	gap = time.Millisecond
	// previewDelay is how long a begun line may stay silent before a terminal
	// shows what there is of it, a prompt for example.
	previewDelay = 100 * time.Millisecond
	// pollInterval is how often files are looked at where the system does not
	// tell of changes.
	pollInterval = 10 * time.Millisecond
)

// TailConfig says which files a Tail follows, and where to.
type TailConfig struct {
	// Files are the files to follow, by local rank. They need not exist yet.
	Files map[int]string
	// Prefixes are put before each line, by local rank.
	Prefixes map[int]string
	// Containing selects the lines that hold one of these strings. Empty
	// selects all.
	Containing []string
	// Collapse is how long a line waits at most for the same line of other
	// files, to be copied once, with the prefix that CollapsedPrefix returns for
	// their local ranks (in ascending order, two at least; nil means their
	// prefixes one after another). 0 means that nothing waits. Lines are the same
	// when all their bytes are. Updates of progress bars and lines of more than
	// 4 KiB do not wait. Not with Containing.
	Collapse        time.Duration
	CollapsedPrefix func(localRanks []int) string
	// Writer gets the lines, always whole ones and as many as there are with
	// one Write, except that a line of more than 64 KiB may come in pieces. Write
	// is not called concurrently. After an error the lines of that Write are
	// lost, and the next ones are tried again.
	Writer io.Writer
	Logger *slog.Logger // nil means slog.Default()
}

// A Tail follows files while they grow and copies their lines to one writer.
//
// A line is copied once its newline is there, or once Stop was called; where it
// lacks its newline then it gets one. In a line with carriage returns (a
// progress bar) each update counts as a line of its own, with its own prefix,
// and the carriage return stays; it is ended by a newline before another
// file's line follows. Bytes are otherwise copied as they are. A file that has
// become shorter is followed from its beginning.
//
// Memory use does not depend on how long lines are.
//
// Source: TailLog in torch/distributed/elastic/multiprocessing/tail_log.py.
type Tail struct {
	files    []*follower
	needles  [][]byte
	to       *console
	watcher  *watcher
	ownWatch bool
	log      *slog.Logger
	openFile func(path string) (*os.File, fs.FileInfo, error)

	wake    chan struct{} // a file has changed; has room for one
	stop    chan struct{} // closed by Stop
	done    chan struct{} // closed when run has returned
	started bool

	abandoned          atomic.Bool // nothing may be written any more
	bytes, lines, lost atomic.Int64
	held               atomic.Int64 // bytes that collapse holds
	stopping           bool         // the rest is run's own
	collapse           *collapser   // nil: lines are copied at once
	in, out            []byte
	timer              *time.Timer
	polling            bool
}

// A follower is one file of a Tail.
//
// What is between start and scanned is the beginning of a unit whose end has not
// been seen. It is not kept in memory but read again.
type follower struct {
	t         *Tail
	localRank int
	index     int // in the Tail's files
	path      string
	prefix    []byte
	watch     watch

	file    *os.File     // nil until it exists
	link    string       // another name of file, see descriptorPath
	start   atomic.Int64 // what is before was copied or passed over; only run changes it
	scanned int64
	limit   int64     // while stopping: how far to read; else -1
	shown   int       // bytes of the begun unit's output that a terminal shows already
	grown   time.Time // when scanned last changed
	armed   bool
	failed  bool
}

// NewTail checks cfg. The Tail does nothing until Start.
func NewTail(cfg TailConfig) (*Tail, error) {
	if cfg.Writer == nil {
		return nil, errors.New("tail: no writer")
	}
	c := &console{w: cfg.Writer}
	return newTail(cfg, c, nil), nil
}

// newTail makes a Tail to a console that others may share, with a watcher that
// others may share; nil means its own.
func newTail(cfg TailConfig, to *console, w *watcher) *Tail {
	t := &Tail{
		to: to, watcher: w, log: cfg.Logger, openFile: safeopen.Open,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if t.log == nil {
		t.log = slog.Default()
	}
	for _, s := range cfg.Containing {
		t.needles = append(t.needles, []byte(s))
	}
	for i, r := range slices.Sorted(maps.Keys(cfg.Files)) {
		t.files = append(t.files, &follower{t: t, localRank: r, index: i, path: cfg.Files[r], prefix: []byte(cfg.Prefixes[r]), limit: -1, watch: watch{wake: t.wake}})
	}
	if cfg.Collapse > 0 && len(t.files) > 1 && len(t.needles) == 0 {
		t.collapse = newCollapser(t, cfg.Collapse, cfg.CollapsedPrefix)
		if cfg.CollapsedPrefix == nil {
			t.collapse.prefix = func(localRanks []int) string {
				var all string
				for _, r := range localRanks {
					all += cfg.Prefixes[r]
				}
				return all
			}
		}
	}
	return t
}

// newTail is that of a run's files, with a watcher that it gets later.
func (r *Run) newTail(cfg TailConfig, to *console) *Tail {
	t := newTail(cfg, to, nil)
	t.openFile = r.open
	return t
}

// Start begins to follow. It is called once.
func (t *Tail) Start() {
	t.started = true
	if t.watcher == nil {
		t.watcher, t.ownWatch = newWatcher(t.log), true
	}
	go t.run()
}

// Stop copies everything that was written to the files before it was called, and
// ends the Tail. When ctx ends first, because the writer is stuck, it returns at
// once with ctx's cause; then what is left is counted as lost. It is called once,
// after Start.
func (t *Tail) Stop(ctx context.Context) (Stats, error) {
	close(t.stop)
	err := t.wait(ctx)
	return t.stats(), err
}

// wait waits until run has returned after stop was closed, or ctx ends.
func (t *Tail) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-t.done:
		return nil
	default:
	}
	t.abandoned.Store(true)
	left := t.held.Load()
	for _, f := range t.files {
		if fi, err := os.Stat(f.path); err == nil {
			left += max(fi.Size()-f.start.Load(), 0)
		}
	}
	t.lost.Add(left)
	return fmt.Errorf("%d bytes of output not written in time: %w", left, context.Cause(ctx))
}

func (t *Tail) stats() Stats {
	return Stats{Bytes: t.bytes.Load(), Lines: t.lines.Load(), LostBytes: t.lost.Load()}
}

func (t *Tail) run() {
	defer close(t.done)
	defer t.closeFiles()
	t.timer = time.NewTimer(time.Hour)
	var last time.Time // when something was copied
	for !t.stopping {
		select {
		case <-t.stop:
			t.stopping = true
			continue
		default:
		}
		if t.to.closed.Load() {
			<-t.stop
			continue
		}
		copied, more := t.round()
		if t.collapse != nil {
			t.collapse.expire(time.Now())
		}
		if more {
			continue
		}
		if copied {
			now := time.Now()
			soon := now.Sub(last) < gap
			last = now
			if soon {
				t.pause(gap)
				continue
			}
		}
		if !t.arm() {
			t.pause(t.preview())
		}
	}
	t.finish()
}

// pause waits until a file changes, Stop is called, or d is over. 0 means no end.
func (t *Tail) pause(d time.Duration) {
	wake := t.wake
	if d == gap {
		wake = nil // it lasts as long, whatever comes
	}
	var over <-chan time.Time
	if d > 0 {
		t.timer.Reset(d)
		over = t.timer.C
	}
	select {
	case <-wake:
	case <-over:
	case <-t.stop:
	}
}

// round copies at most a block of each file that may have grown, in turn.
func (t *Tail) round() (copied, more bool) {
	for _, f := range t.files {
		if f.armed && !f.watch.fired.Load() {
			continue
		}
		n, full := f.step()
		copied = copied || n
		more = more || full
	}
	return copied, more
}

// arm makes each file's next change wake the Tail. It returns true when a file
// may have changed before.
func (t *Tail) arm() (again bool) {
	t.polling = false
	for _, f := range t.files {
		if f.failed || f.armed && !f.watch.fired.Load() {
			continue
		}
		f.watch.fired.Store(false)
		f.armed = f.arm()
		t.polling = t.polling || !f.armed
		if f.changed() {
			f.armed, again = false, true
		}
	}
	return again
}

// preview shows what a terminal should see of begun lines that have been silent
// for a while. It returns after how long to look again, 0 for not at all.
func (t *Tail) preview() time.Duration {
	next := time.Duration(0)
	if t.polling {
		next = pollInterval
	}
	if t.collapse != nil {
		if wait := t.collapse.wait(time.Now()); wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	if !t.to.terminal || len(t.needles) > 0 {
		return next
	}
	for _, f := range t.files {
		if f.scanned == f.start.Load() || f.grown.IsZero() {
			continue
		}
		wait := previewDelay - time.Since(f.grown)
		if wait <= 0 {
			f.preview()
			f.grown = time.Time{}
			continue
		}
		if next == 0 || wait < next {
			next = wait
		}
	}
	return next
}

// finish copies what the files hold now, to the last byte.
func (t *Tail) finish() {
	for _, f := range t.files {
		f.limit = 0
		if f.open() {
			if fi, err := f.file.Stat(); err == nil {
				f.limit = fi.Size()
				f.restartIf(f.limit)
			}
		}
		f.armed = false
	}
	for more := true; more && !t.over(); {
		_, more = t.round()
	}
	if t.collapse != nil && !t.over() {
		t.collapse.flushTo(math.MaxInt64)
	}
	if !t.abandoned.Load() {
		t.lost.Add(t.held.Load())
	}
	for _, f := range t.files {
		if !t.over() {
			f.last()
		}
		if !t.abandoned.Load() {
			t.lost.Add(max(f.limit-f.start.Load(), 0))
		}
	}
}

// over reports whether copying on makes no sense.
func (t *Tail) over() bool { return t.abandoned.Load() || t.to.closed.Load() }

func (t *Tail) closeFiles() {
	for _, f := range t.files {
		if f.file != nil {
			f.file.Close()
		}
	}
	if t.ownWatch {
		t.watcher.close()
	}
}

// buffers makes the Tail's memory when it is needed first.
func (t *Tail) buffers() {
	if t.in == nil {
		t.in = make([]byte, blockSize)
		t.out = make([]byte, 1, 1+flushSize+blockSize)
	}
}

// open opens the file if it exists.
func (f *follower) open() bool {
	if f.file != nil || f.failed {
		return f.file != nil
	}
	file, _, err := f.t.openFile(f.path)
	if err == nil {
		f.file, f.link = file, descriptorPath(file)
		return true
	}
	if !errors.Is(err, fs.ErrNotExist) {
		f.failed = true
		f.t.log.Warn("cannot follow a log file", "local_rank", f.localRank, "file", f.path, "error", err)
	}
	return false
}

// arm asks to be told of the file's next change, or of the next file in the
// directory where it will be. It returns false where that cannot be had.
func (f *follower) arm() bool {
	if f.file == nil {
		return f.t.watcher.arm(&f.watch, filepath.Dir(f.path), true)
	}
	// Through the descriptor, since the path may name another file by now.
	return f.t.watcher.arm(&f.watch, f.link, false) || f.t.watcher.arm(&f.watch, f.path, false)
}

// changed reports whether there is something to do.
func (f *follower) changed() bool {
	if f.file == nil {
		return f.open()
	}
	fi, err := f.file.Stat()
	if err != nil {
		return false
	}
	return f.restartIf(fi.Size()) || fi.Size() > f.scanned
}

// restartIf begins again if the file has become shorter.
func (f *follower) restartIf(size int64) bool {
	if size >= f.scanned {
		return false
	}
	f.advance(0)
	f.scanned = 0
	f.t.to.disown(f)
	return size > 0
}

// advance moves start. What a terminal showed of the unit there is history.
func (f *follower) advance(to int64) {
	f.start.Store(to)
	f.shown = 0
}

// step reads on and copies the units that are whole. It reports whether the file
// has grown, and whether there may be more to read at once.
func (f *follower) step() (grown, more bool) {
	if !f.open() {
		return false, false
	}
	t := f.t
	t.buffers()
	from := f.start.Load()
	long := f.scanned-from > longUnit
	if long {
		from = f.scanned
	}
	b := t.in
	if f.limit >= 0 {
		b = b[:max(min(int64(len(b)), f.limit-from), 0)]
	}
	full := len(b)
	b = b[:f.read(b, from)]
	fresh := from + int64(len(b)) - f.scanned
	if fresh <= 0 {
		return false, false
	}
	f.grown = time.Now()
	if long {
		f.stepLong(b)
		return true, true
	}
	end := unitsEnd(b, int(f.scanned-from))
	f.scanned = from + int64(len(b))
	if end > 0 {
		t.copyUnits(f, b[:end])
		f.advance(from + int64(end))
	} else if len(b) > longUnit {
		// From here on carriage returns are searched only once.
		f.scanned = from + int64(max(len(bytes.TrimRight(b, "\r")), longUnit+1))
	}
	return true, len(b) == full && full > 0
}

// stepLong goes on in a long unit with b, which is what follows scanned.
func (f *follower) stepLong(b []byte) {
	end, scanned := longUnitEnd(b)
	if end < 0 {
		if scanned == 0 && len(b) == blockSize {
			scanned = len(b)
		}
		f.scanned += int64(scanned)
		return
	}
	to := f.scanned + int64(end)
	f.t.copyLong(f, f.start.Load(), to, false)
	f.advance(to)
	f.scanned = to
}

// read reads at an offset and returns how much there was.
func (f *follower) read(b []byte, from int64) int {
	for {
		n, err := syscall.Pread(int(f.file.Fd()), b, from)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			if !f.failed {
				f.failed = true
				f.t.log.Warn("cannot read a log file", "local_rank", f.localRank, "error", err)
			}
			return 0
		}
		return n
	}
}

// copyUnits copies whole units.
func (t *Tail) copyUnits(f *follower, b []byte) {
	if t.collapse != nil {
		t.collapse.copyUnits(f, b)
		return
	}
	t.writeUnits(f, b)
}

// writeUnits writes whole units that pass the filter.
func (t *Tail) writeUnits(f *follower, b []byte) {
	if len(t.needles) > 0 && !t.matches(b) {
		return
	}
	plain := len(t.needles) == 0 && b[len(b)-1] == '\n' && bytes.IndexByte(b, '\r') < 0
	out, from, lines := t.out[:1], 0, int64(0)
	for at := 0; at < len(b); {
		if plain {
			n := bytes.IndexByte(b[at:], '\n') + 1
			out = append(out, f.prefix...)
			out = append(out, b[at:at+n]...)
			at += n
			lines++
		} else {
			unit := b[at : at+unitLen(b[at:])]
			if len(t.needles) == 0 || t.matches(unit) {
				out = appendUnit(out, f.prefix, unit)
				lines++
			}
			at += len(unit)
		}
		if len(out) >= flushSize || at == len(b) {
			t.put(f, out, at-from, lines)
			out, from, lines = out[:1], at, 0
		}
	}
	t.out = out[:1]
}

// put writes out, whose first byte is room for a newline, with what became of
// some bytes of f's file.
func (t *Tail) put(f *follower, out []byte, bytes int, lines int64) {
	if t.abandoned.Load() || len(out) == 1 {
		return
	}
	lost := t.to.put(f, out, f.shown, out[len(out)-1] != '\n')
	f.shown = 0
	t.count(int64(bytes), lines, int64(lost))
}

func (t *Tail) count(bytes, lines, lost int64) {
	if t.abandoned.Load() {
		return // counted by wait
	}
	lost = min(lost, bytes)
	t.bytes.Add(bytes - lost)
	t.lines.Add(lines)
	t.lost.Add(lost)
}

func (t *Tail) matches(b []byte) bool {
	for _, s := range t.needles {
		if bytes.Contains(b, s) {
			return true
		}
	}
	return false
}

// copyLong copies one unit that need not fit into memory.
func (t *Tail) copyLong(f *follower, from, to int64, last bool) {
	if t.collapse != nil {
		t.collapse.flushTo(t.collapse.last[f.index])
	}
	if len(t.needles) > 0 && !t.matchesLong(f, from, to) {
		return
	}
	c := t.to
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.open = nil
		c.write([]byte{'\n'})
	}
	ended := false
	bytes, lost := int64(0), 0
	for at := from; at < to && !t.abandoned.Load(); {
		n := f.read(t.in[:min(int64(len(t.in)), to-at)], at)
		if n == 0 {
			break // truncated meanwhile
		}
		out := t.in[:n]
		if at == from {
			out = appendUnit(t.out[:0], f.prefix, out)
		}
		ended = out[len(out)-1] == '\n'
		lost += len(out) - c.write(out)
		at += int64(n)
		bytes += int64(n)
	}
	switch {
	case ended:
	case last:
		c.write([]byte{'\n'})
	case c.open == nil:
		c.open = f
	}
	t.count(bytes, 1, int64(lost))
}

// matchesLong is matches for a piece of a file.
func (t *Tail) matchesLong(f *follower, from, to int64) bool {
	overlap := 0
	for _, s := range t.needles {
		overlap = max(overlap, len(s)-1)
	}
	overlap = min(overlap, blockSize/2)
	for at := from; at < to; {
		n := f.read(t.in[:min(int64(len(t.in)), to-at)], at)
		if t.matches(t.in[:n]) {
			return true
		}
		if n <= overlap {
			return false
		}
		at += int64(n - overlap)
		if at+int64(overlap) >= to {
			return false
		}
	}
	return false
}

// preview shows what there is of a begun unit.
func (f *follower) preview() {
	t := f.t
	b := t.in[:min(f.scanned-f.start.Load(), longUnit)]
	if int64(len(b)) < f.scanned-f.start.Load() {
		return
	}
	b = bytes.TrimRight(b[:f.read(b, f.start.Load())], "\r")
	if len(b) == 0 {
		return
	}
	if t.collapse != nil {
		t.collapse.flushTo(t.collapse.last[f.index])
	}
	out := appendUnit(t.out[:1], f.prefix, b)
	t.out = out[:1]
	t.to.put(f, out, f.shown, true)
	f.shown = len(out) - 1
}

// last copies the unit that has no end, and ends it.
func (f *follower) last() {
	t := f.t
	start := f.start.Load()
	rest := f.scanned - start
	switch {
	case rest > longUnit:
		t.copyLong(f, start, f.scanned, true)
		f.advance(f.scanned)
	case rest > 0:
		b := t.in[:rest]
		b = b[:f.read(b, start)]
		if len(b) > 0 && (len(t.needles) == 0 || t.matches(b)) {
			out := append(appendUnit(t.out[:1], f.prefix, b), '\n')
			t.put(f, out, len(b), 1)
		}
		f.advance(f.scanned)
	}
	t.to.end(f)
}
