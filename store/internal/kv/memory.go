package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// The errors of a Memory, which are those of package store.
var (
	ErrClosed     = errors.New("store: closed")
	ErrReset      = errors.New("store: emptied while waiting")
	ErrQueueEmpty = errors.New("store: queue is empty")
	ErrLengths    = errors.New("store: multi-set needs as many values as keys")
)

// A Memory is a Map for goroutines: a store.Store whose calls take the lock, and block
// where they have to wait.
type Memory struct {
	Map *Map // for the server; never nil
	// Guarded by Map's lock.
	ended  error                // set by Close
	inside map[*inside]struct{} // those blocked in a call
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{Map: New(), inside: map[*inside]struct{}{}}
}

// Reset removes all keys and queues. Calls that are blocked return ErrReset.
func (s *Memory) Reset() {
	s.Map.Lock()
	defer s.Map.Unlock()
	s.endAll(ErrReset)
	s.Map.Clear()
}

// Close ends all blocked calls and all later ones with ErrClosed.
// It may be called again.
func (s *Memory) Close() {
	s.Map.Lock()
	defer s.Map.Unlock()
	s.ended = ErrClosed
	s.endAll(ErrClosed)
}

func (s *Memory) endAll(err error) {
	for in := range s.inside {
		if in.waiter.Parked() { // else it has been told already
			s.Map.Cancel(&in.waiter)
			in.err = err
			close(in.done)
		}
	}
}

// inside is one goroutine blocked in a call.
type inside struct {
	waiter Waiter
	done   chan struct{}
	err    error // why it ends although nothing has happened; guarded by the map's lock
}

func (in *inside) Fire() bool { close(in.done); return false }
func (in *inside) Deliver()   {}

// do runs f with the data locked.
func (s *Memory) do(ctx context.Context, f func()) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.Map.Lock()
	defer s.Map.Unlock()
	if s.ended != nil {
		return s.ended
	}
	f()
	return nil
}

// block runs try with the data locked, until it has not parked the waiter that
// it is given. It runs again after each Fire, since until this goroutine has the lock another call may have
// taken what there was. A call that is given up then cancels its waiter, fired or not, so that the next in
// line gets a value that was meant for it.
func (s *Memory) block(ctx context.Context, try func(w *Waiter) (done bool, err error)) error {
	for {
		in := &inside{done: make(chan struct{})}
		in.waiter.Notifier = in
		done := false
		var failed error
		err := s.do(ctx, func() {
			if done, failed = try(&in.waiter); !done && failed == nil {
				s.inside[in] = struct{}{}
			}
		})
		if done || failed != nil || err != nil {
			return cmp.Or(err, failed)
		}
		select {
		case <-in.done:
		case <-ctx.Done():
		}
		s.Map.Lock()
		delete(s.inside, in)
		if in.waiter.Parked() || ctx.Err() != nil {
			s.Map.Cancel(&in.waiter)
		}
		err = in.err
		s.Map.Unlock()
		if err != nil {
			return err
		}
	}
}

// Set implements store.Store.
func (s *Memory) Set(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.Map.Set(key, Value{Bytes: value}) })
}

// Get implements store.Store.
func (s *Memory) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.block(ctx, func(w *Waiter) (bool, error) {
		if found, ok := s.Map.Get(key); ok {
			value = append([]byte{}, found...)
			return true, nil
		}
		// A queue of that name does not make the key exist, and Wait would
		// return at once.
		s.Map.OnChange(w, key)
		return false, nil
	})
	return value, err
}

// Add implements store.Store.
func (s *Memory) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	var bad error
	err = s.do(ctx, func() { sum, bad = s.Map.Add(key, delta) })
	if bad != nil {
		err = fmt.Errorf("store: add to %.200q: %w", key, bad)
	}
	return sum, err
}

// CompareAndSet implements store.Store.
func (s *Memory) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = s.do(ctx, func() {
		value = append([]byte{}, s.Map.CompareAndSet(key, expected, Value{Bytes: desired})...)
	})
	return value, err
}

// Wait implements store.Store.
func (s *Memory) Wait(ctx context.Context, keys ...string) error {
	fired := false
	return s.block(ctx, func(w *Waiter) (bool, error) {
		if fired {
			return true, nil
		}
		fired = true
		return s.Map.Wait(w, keys...), nil
	})
}

// Check implements store.Store.
func (s *Memory) Check(ctx context.Context, keys ...string) (all bool, err error) {
	err = s.do(ctx, func() {
		all = !slices.ContainsFunc(keys, func(key string) bool { return !s.Map.Has(key) })
	})
	return all, err
}

// Append implements store.Store.
func (s *Memory) Append(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.Map.Append(key, Value{Bytes: value}) })
}

// MultiGet implements store.Store.
func (s *Memory) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	err = s.block(ctx, func(w *Waiter) (bool, error) {
		for _, key := range keys {
			if _, ok := s.Map.Get(key); !ok {
				s.Map.OnChange(w, key)
				return false, nil
			}
		}
		values = make([][]byte, len(keys))
		for i, key := range keys {
			found, _ := s.Map.Share(key)
			values[i] = found
		}
		return true, nil
	})
	for i, value := range values {
		values[i] = append([]byte{}, value...)
	}
	return values, err
}

// MultiSet implements store.Store.
func (s *Memory) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return fmt.Errorf("%w: %d keys, %d values", ErrLengths, len(keys), len(values))
	}
	return s.do(ctx, func() {
		for i, key := range keys {
			s.Map.Set(key, Value{Bytes: values[i]})
		}
	})
}

// Delete implements store.Store.
func (s *Memory) Delete(ctx context.Context, key string) (was bool, err error) {
	err = s.do(ctx, func() { was = s.Map.Delete(key) })
	return was, err
}

// NumKeys implements store.Store.
func (s *Memory) NumKeys(ctx context.Context) (n int64, err error) {
	err = s.do(ctx, func() { n = int64(s.Map.Len()) })
	return n, err
}

// ListKeys implements store.Store.
func (s *Memory) ListKeys(ctx context.Context) (keys []string, err error) {
	err = s.do(ctx, func() { keys = s.Map.Keys() })
	return keys, err
}

// QueuePush implements store.Store.
func (s *Memory) QueuePush(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.Map.Push(key, Value{Bytes: value}) })
}

// QueuePop implements store.Store.
func (s *Memory) QueuePop(ctx context.Context, key string, block bool) (value []byte, err error) {
	err = s.block(ctx, func(w *Waiter) (bool, error) {
		found, before := s.Map.Pop(key)
		if before > 0 {
			value = append([]byte{}, found...)
			return true, nil
		}
		if !block {
			return false, ErrQueueEmpty
		}
		s.Map.OnPush(w, key)
		return false, nil
	})
	return value, err
}

// QueueLen implements store.Store.
func (s *Memory) QueueLen(ctx context.Context, key string) (n int64, err error) {
	err = s.do(ctx, func() { n = int64(s.Map.QueueLen(key)) })
	return n, err
}

// Barrier implements store.Store. A Memory that is served meets with the clients'
// calls of Barrier.
func (s *Memory) Barrier(ctx context.Context, key string, n int) error {
	arrived := false
	return s.block(ctx, func(w *Waiter) (bool, error) {
		if arrived {
			return true, nil
		}
		arrived = true
		passed, err := s.Map.Barrier(w, key, int64(n))
		if err != nil {
			err = fmt.Errorf("store: barrier at %.200q: %w", key, err)
		}
		return passed, err
	})
}

// WaitNumber blocks until enough has returned true for the number stored at the
// key, 0 where there is none. It is called whenever the value changes, with the
// store locked.
func (s *Memory) WaitNumber(ctx context.Context, key string, enough func(int64) bool) error {
	return s.block(ctx, func(w *Waiter) (bool, error) {
		n := int64(0)
		if value, ok := s.Map.Get(key); ok {
			if n, ok = ParseInt(value); !ok {
				return false, fmt.Errorf("store: %.200q: %w", key, ErrNotNumber)
			}
		}
		if enough(n) {
			return true, nil
		}
		s.Map.OnChange(w, key)
		return false, nil
	})
}
