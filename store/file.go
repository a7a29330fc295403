//go:build unix

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-run/muster/store/internal/kv"
)

// A File is a store in a file, shared by all processes that open it; they need
// no server. The file is a log of changes (docs/filestore.md has its format,
// which is not that of PyTorch's FileStore): every handle keeps the whole data in memory and reads
// what others have added since. Processes exclude one another by flock, learn of
// changes by inotify, and where there is no inotify, or the file system is a
// network's, look for them a few times a second while a call is blocked.
//
// A process that dies in the middle of a change leaves either all of it or none.
// Nothing is synced to the disk: the store does not outlive a crash of the machine.
type File struct {
	path string
	data *Memory
	done chan struct{} // closed by Close

	turn chan struct{} // of one; held by whoever uses what follows
	f    *os.File
	info os.FileInfo // of f
	at   int64       // everything before is in data
	due  int64       // the size at which the log may be worth rewriting

	mu      sync.Mutex // guards the rest
	waiting int        // blocked calls
	watch   watcher    // nil until a call has blocked
	watched sync.WaitGroup
	closed  bool
}

var _ Store = (*File)(nil)

// A DamagedError says that a store's file holds what no store has written.
type DamagedError struct {
	Path   string
	Offset int64 // Offset is where the first bad byte or record is
	Why    string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("store: file %s is damaged at byte %d: %s; remove it if no job uses it", e.Path, e.Offset, e.Why)
}

// ErrRemoved matches the errors of calls on a store whose file was removed.
var ErrRemoved = errors.New("store: file was removed")

// OpenFile opens the store at the path and creates it if need be. Whoever calls
// it closes the store; the file stays.
func OpenFile(path string) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &File{path: path, data: NewMemory(), done: make(chan struct{}), turn: make(chan struct{}, 1)}
	if err := s.open(); err != nil {
		return nil, err
	}
	// A file that is not ours should be found out now.
	if err := s.change(context.Background(), func(*changes) error { return nil }); err != nil {
		s.f.Close()
		return nil, err
	}
	return s, nil
}

// Path returns the file's absolute path.
func (s *File) Path() string { return s.path }

// Close closes the handle. Calls that are blocked, and all later ones, return
// ErrClosed. It may be called again.
func (s *File) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.watched.Wait()
		return nil
	}
	s.closed = true
	close(s.done)
	err := s.data.Close()
	if s.watch != nil {
		s.watch.close()
	}
	s.mu.Unlock()
	s.watched.Wait()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return errors.Join(err, s.f.Close())
}

func (s *File) open() error {
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", s.path)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("store: %w", err)
	}
	s.f, s.info, s.at, s.due = f, info, 0, firstDue
	return nil
}

// lock takes the turn and the file's lock, and follows the path if the file has
// been rewritten.
func (s *File) lock(ctx context.Context, how int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := s.lockFile(ctx, how)
	if err != nil {
		<-s.turn
	}
	return err
}

func (s *File) unlock() {
	s.funlock()
	<-s.turn
}

// funlock cannot fail on a lock that is held.
func (s *File) funlock() { _ = syscall.Flock(int(s.f.Fd()), syscall.LOCK_UN) }

func (s *File) lockFile(ctx context.Context, how int) error {
	for {
		if err := s.flock(ctx, how); err != nil {
			return err
		}
		info, err := os.Stat(s.path)
		switch {
		case err == nil && os.SameFile(info, s.info):
			return nil
		case errors.Is(err, os.ErrNotExist):
			s.funlock()
			return fmt.Errorf("%w: %s", ErrRemoved, s.path)
		case err != nil:
			s.funlock()
			return fmt.Errorf("store: %w", err)
		}
		// Somebody has rewritten the log. What the old one got before that is
		// worth reading, since a key may have come and gone.
		old := s.f
		if err = s.read(false); err == nil {
			err = s.open()
		}
		if err != nil {
			s.funlock()
			return err
		}
		old.Close()
	}
}

// flock locks the file. It asks again and again, at most 5 ms apart, where it
// would have to wait, since that cannot be interrupted.
func (s *File) flock(ctx context.Context, how int) error {
	pause := 50 * time.Microsecond
	for {
		select {
		case <-s.done:
			return ErrClosed
		default:
		}
		err := syscall.Flock(int(s.f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("store: lock %s: %w", s.path, err)
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-s.done:
		case <-ctx.Done():
			again.Stop()
			return context.Cause(ctx)
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// read brings data up to date. With the exclusive lock it also begins an empty
// file and removes what a process that died has left unfinished at the end.
func (s *File) read(exclusive bool) error {
	info, err := s.f.Stat()
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	size := info.Size()
	switch {
	case size == s.at && size > 0:
		return nil
	case size < s.at:
		return &DamagedError{s.path, size, fmt.Sprintf("it was %d bytes long and has been cut", s.at)}
	}
	if size < headerSize {
		if !exclusive {
			return nil // its maker died, or is about to go on
		}
		if size > 0 && !s.startsWell(size) {
			return &DamagedError{s.path, 0, "it does not begin as a store"}
		}
		if err := s.write(appendHeader(nil), 0); err != nil {
			return err
		}
		s.at = headerSize
		return nil
	}
	in := io.NewSectionReader(s.f, s.at, size-s.at)
	var fresh *kv.Map
	if s.at == 0 {
		if err := readHeader(in, s.path); err != nil {
			return err
		}
		s.at = headerSize
		fresh = kv.New()
		fresh.Lock()
		defer fresh.Unlock()
	}
	for s.at < size {
		payload, err := readRecord(in, size-s.at)
		if errors.Is(err, errUnfinished) {
			if !exclusive {
				break
			}
			if err := s.f.Truncate(s.at); err != nil {
				return fmt.Errorf("store: %w", err)
			}
			break
		}
		if err == nil {
			err = s.apply(payload, fresh)
		}
		if err != nil {
			return &DamagedError{s.path, s.at, err.Error()}
		}
		s.at += recordHead + int64(len(payload))
	}
	if fresh != nil {
		s.become(fresh)
	}
	return nil
}

func (s *File) startsWell(size int64) bool {
	b := make([]byte, size)
	_, err := s.f.ReadAt(b, 0)
	return err == nil && strings.HasPrefix(string(appendHeader(nil)), string(b))
}

// apply performs a record on data, or on fresh if that is not nil.
func (s *File) apply(payload []byte, fresh *kv.Map) error {
	if fresh != nil {
		return applyTo(fresh, payload)
	}
	s.data.m.Lock()
	defer s.data.m.Unlock()
	return applyTo(s.data.m, payload)
}

// become makes data equal to what a new log begins with.
func (s *File) become(fresh *kv.Map) {
	m := s.data.m
	m.Lock()
	defer m.Unlock()
	for _, key := range m.Keys() {
		if _, ok := fresh.Get(key); !ok {
			m.Delete(key)
		}
	}
	for _, key := range fresh.Keys() {
		value, _ := fresh.Get(key)
		if old, ok := m.Get(key); !ok || string(old) != string(value) {
			m.Set(key, kv.Value{Bytes: value})
		}
	}
	for _, key := range m.QueueKeys() {
		for m.QueueLen(key) > 0 {
			m.Pop(key)
		}
	}
	for _, key := range fresh.QueueKeys() {
		for _, item := range fresh.Queue(key) {
			m.Push(key, kv.Value{Bytes: item})
		}
	}
}

// write writes at an offset, all or nothing.
func (s *File) write(b []byte, at int64) error {
	if _, err := s.f.WriteAt(b, at); err != nil {
		return fmt.Errorf("store: %w", errors.Join(err, s.f.Truncate(at)))
	}
	return nil
}

// view has f look at the data as it is now.
func (s *File) view(ctx context.Context) error {
	if err := s.lock(ctx, syscall.LOCK_SH); err != nil {
		return err
	}
	defer s.unlock()
	return s.read(false)
}

// change has f decide on changes to the data as it is now, and makes them.
func (s *File) change(ctx context.Context, f func(*changes) error) error {
	if err := s.lock(ctx, syscall.LOCK_EX); err != nil {
		return err
	}
	defer s.unlock()
	if err := s.read(true); err != nil {
		return err
	}
	c := &changes{record: make([]byte, recordHead, 256)}
	s.data.m.Lock()
	c.m = s.data.m
	err := f(c)
	s.data.m.Unlock()
	if err != nil || len(c.record) == recordHead {
		return err
	}
	if err := c.seal(); err != nil {
		return err
	}
	if err := s.write(c.record, s.at); err != nil {
		return err
	}
	s.at += int64(len(c.record))
	if err := s.apply(c.record[recordHead:], nil); err != nil {
		return fmt.Errorf("store: internal error: %w", err)
	}
	if s.at >= s.due {
		// The change is made; if there is no room for a shorter log the next
		// change tries again.
		_ = s.rewrite()
	}
	return nil
}

// rewrite replaces the log by a shorter one if that saves much.
func (s *File) rewrite() error {
	s.data.m.Lock()
	log := snapshot(s.data.m)
	s.data.m.Unlock()
	size := int64(len(log))
	if s.due = max(firstDue, 4*size); s.at < s.due {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".new*")
	if err != nil {
		return err
	}
	// Locked before it can be found, as is the old one: nobody writes to
	// either until this handle has unlocked.
	err = errors.Join(
		syscall.Flock(int(tmp.Fd()), syscall.LOCK_EX|syscall.LOCK_NB),
		tmp.Chmod(s.info.Mode().Perm()))
	if err == nil {
		_, err = tmp.Write(log)
	}
	info, statErr := tmp.Stat()
	if err = errors.Join(err, statErr); err == nil {
		err = os.Rename(tmp.Name(), s.path)
	}
	if err != nil {
		tmp.Close()
		os.Remove(tmp.Name())
		return err
	}
	s.f.Close()
	s.f, s.info, s.at = tmp, info, size
	return nil
}

// blocked runs f, which blocks on data, while the file is watched.
func (s *File) blocked(ctx context.Context, f func() error) error {
	if err := s.startWaiting(); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	// The watch is on: what comes after this is seen by the watcher.
	if err := s.view(ctx); err != nil {
		return err
	}
	return f()
}

func (s *File) startWaiting() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.waiting++
	if s.watch == nil {
		w, err := newWatcher(s.path)
		if err != nil {
			s.waiting--
			return fmt.Errorf("store: watch %s: %w", s.path, err)
		}
		s.watch = w
		s.watched.Go(func() { s.follow(w) })
	}
	if err := s.watch.add(); err != nil {
		s.waiting--
		return fmt.Errorf("store: watch %s: %w", s.path, err)
	}
	return nil
}

// follow reads the file whenever it has changed while calls are blocked.
func (s *File) follow(w watcher) {
	waiting := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting > 0
	}
	for w.next(waiting) {
		if err := s.view(context.Background()); err != nil && !errors.Is(err, ErrClosed) {
			s.data.endBlocked(err)
		}
	}
}

// Set implements Store.
func (s *File) Set(ctx context.Context, key string, value []byte) error {
	return s.change(ctx, func(c *changes) error {
		c.set(key, value)
		return nil
	})
}

// Get implements Store.
func (s *File) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.blocked(ctx, func() (err error) {
		value, err = s.data.Get(ctx, key)
		return err
	})
	return value, err
}

// Add implements Store.
func (s *File) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	err = s.change(ctx, func(c *changes) error {
		sum = delta
		if value, ok := c.m.Get(key); ok {
			n, ok := kv.ParseInt(value)
			if !ok {
				return fmt.Errorf("store: add to %.200q: %w", key, ErrNotNumber)
			}
			sum += n
		}
		c.set(key, kv.AppendInt(nil, sum))
		return nil
	})
	return sum, err
}

// CompareAndSet implements Store.
func (s *File) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (result []byte, err error) {
	err = s.change(ctx, func(c *changes) error {
		value, ok := c.m.Get(key)
		switch {
		case !ok && len(expected) > 0:
			value = expected
		case ok && string(value) != string(expected):
		default:
			if !ok || string(value) != string(desired) {
				c.set(key, desired)
			}
			value = desired
		}
		result = append([]byte{}, value...)
		return nil
	})
	return result, err
}

// Wait implements Store.
func (s *File) Wait(ctx context.Context, keys ...string) error {
	return s.blocked(ctx, func() error { return s.data.Wait(ctx, keys...) })
}

// Check implements Store.
func (s *File) Check(ctx context.Context, keys ...string) (bool, error) {
	if err := s.view(ctx); err != nil {
		return false, err
	}
	return s.data.Check(ctx, keys...)
}

// Append implements Store.
func (s *File) Append(ctx context.Context, key string, value []byte) error {
	return s.change(ctx, func(c *changes) error {
		c.add(opAppend, key, value)
		return nil
	})
}

// MultiGet implements Store.
func (s *File) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	err = s.blocked(ctx, func() (err error) {
		values, err = s.data.MultiGet(ctx, keys)
		return err
	})
	return values, err
}

// MultiSet implements Store.
func (s *File) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return fmt.Errorf("%w: %d keys, %d values", ErrLengths, len(keys), len(values))
	}
	return s.change(ctx, func(c *changes) error {
		for i, key := range keys {
			c.set(key, values[i])
		}
		return nil
	})
}

// Delete implements Store.
func (s *File) Delete(ctx context.Context, key string) (was bool, err error) {
	err = s.change(ctx, func(c *changes) error {
		if _, was = c.m.Get(key); was {
			c.add(opDelete, key, nil)
		}
		return nil
	})
	return was, err
}

// NumKeys implements Store.
func (s *File) NumKeys(ctx context.Context) (int64, error) {
	if err := s.view(ctx); err != nil {
		return 0, err
	}
	return s.data.NumKeys(ctx)
}

// ListKeys implements Store.
func (s *File) ListKeys(ctx context.Context) ([]string, error) {
	if err := s.view(ctx); err != nil {
		return nil, err
	}
	return s.data.ListKeys(ctx)
}

// QueuePush implements Store.
func (s *File) QueuePush(ctx context.Context, key string, value []byte) error {
	return s.change(ctx, func(c *changes) error {
		c.add(opPush, key, value)
		return nil
	})
}

// QueuePop implements Store.
func (s *File) QueuePop(ctx context.Context, key string, block bool) (value []byte, err error) {
	for {
		err = s.change(ctx, func(c *changes) error {
			if c.m.QueueLen(key) == 0 {
				return ErrQueueEmpty
			}
			value = append([]byte{}, c.m.Queue(key)[0]...)
			c.add(opPop, key, nil)
			return nil
		})
		if !block || !errors.Is(err, ErrQueueEmpty) {
			return value, err
		}
		// Another process may have it by the time this one has seen it.
		err = s.blocked(ctx, func() error { return s.data.waitQueue(ctx, key) })
		if err != nil {
			return nil, err
		}
	}
}

// QueueLen implements Store.
func (s *File) QueueLen(ctx context.Context, key string) (int64, error) {
	if err := s.view(ctx); err != nil {
		return 0, err
	}
	return s.data.QueueLen(ctx, key)
}

// Barrier implements Store. It is the function of that name.
func (s *File) Barrier(ctx context.Context, key string, n int) error {
	return Barrier(ctx, s, key, n)
}
