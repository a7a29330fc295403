package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-run/muster/store/internal/kv"
)

// A Memory is a store inside one process. Several goroutines may use it, and a
// tcpstore.Server can serve it to others. Make one with NewMemory; it holds
// nothing that would have to be closed.
type Memory struct {
	m *kv.Map
	// Guarded by m's lock.
	ended  error             // set by Close
	inside map[*inside]error // those blocked in a call, and why they ended
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{m: kv.New(), inside: map[*inside]error{}}
}

// Map returns the data itself, for package tcpstore.
func (s *Memory) Map() *kv.Map { return s.m }

// Reset removes all keys and queues. Calls that are blocked return ErrReset.
func (s *Memory) Reset() {
	s.m.Lock()
	defer s.m.Unlock()
	s.endAll(ErrReset)
	s.m.Clear()
}

// Close ends all blocked calls and all later ones with ErrClosed.
// It may be called again.
func (s *Memory) Close() error {
	s.m.Lock()
	defer s.m.Unlock()
	s.ended = ErrClosed
	s.endAll(ErrClosed)
	return nil
}

func (s *Memory) endAll(err error) {
	for in := range s.inside {
		if in.waiter.Parked() { // else it has been told already
			s.m.Cancel(&in.waiter)
			s.inside[in] = err
			close(in.done)
		}
	}
}

// inside is one goroutine blocked in a call.
type inside struct {
	waiter kv.Waiter
	done   chan struct{}
}

func (in *inside) Fire() bool { close(in.done); return false }
func (in *inside) Deliver()   {}

// do runs f with the data locked.
func (s *Memory) do(ctx context.Context, f func()) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.m.Lock()
	defer s.m.Unlock()
	if s.ended != nil {
		return s.ended
	}
	f()
	return nil
}

// block runs try with the data locked, until it has not parked the waiter that
// it is given.
func (s *Memory) block(ctx context.Context, try func(w *kv.Waiter) (done bool, err error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for {
		s.m.Lock()
		if s.ended != nil {
			s.m.Unlock()
			return s.ended
		}
		in := &inside{done: make(chan struct{})}
		in.waiter.Notifier = in
		done, err := try(&in.waiter)
		if done || err != nil {
			s.m.Unlock()
			return err
		}
		s.inside[in] = nil
		s.m.Unlock()
		select {
		case <-in.done:
		case <-ctx.Done():
		}
		s.m.Lock()
		err = s.inside[in]
		delete(s.inside, in)
		fired := !in.waiter.Parked()
		if !fired || ctx.Err() != nil {
			s.m.Cancel(&in.waiter)
		}
		s.m.Unlock()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Set implements Store.
func (s *Memory) Set(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.m.Set(key, kv.Value{Bytes: value}) })
}

// Get implements Store.
func (s *Memory) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.block(ctx, func(w *kv.Waiter) (bool, error) {
		if found, ok := s.m.Get(key); ok {
			value = append([]byte{}, found...)
			return true, nil
		}
		// A queue of that name does not make the key exist, and Wait would
		// return at once.
		s.m.OnChange(w, key)
		return false, nil
	})
	return value, err
}

// Add implements Store.
func (s *Memory) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	var bad error
	err = s.do(ctx, func() { sum, bad = s.m.Add(key, delta) })
	if bad != nil {
		err = fmt.Errorf("store: add to %.200q: %w", key, bad)
	}
	return sum, err
}

// CompareAndSet implements Store.
func (s *Memory) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = s.do(ctx, func() {
		value = append([]byte{}, s.m.CompareAndSet(key, expected, kv.Value{Bytes: desired})...)
	})
	return value, err
}

// Wait implements Store.
func (s *Memory) Wait(ctx context.Context, keys ...string) error {
	fired := false
	return s.block(ctx, func(w *kv.Waiter) (bool, error) {
		if fired {
			return true, nil
		}
		fired = true
		return s.m.Wait(w, keys...), nil
	})
}

// Check implements Store.
func (s *Memory) Check(ctx context.Context, keys ...string) (all bool, err error) {
	err = s.do(ctx, func() {
		all = true
		for _, key := range keys {
			all = all && s.m.Has(key)
		}
	})
	return all, err
}

// Append implements Store.
func (s *Memory) Append(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.m.Append(key, kv.Value{Bytes: value}) })
}

// MultiGet implements Store.
func (s *Memory) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	err = s.block(ctx, func(w *kv.Waiter) (bool, error) {
		for _, key := range keys {
			if _, ok := s.m.Get(key); !ok {
				s.m.OnChange(w, key)
				return false, nil
			}
		}
		values = make([][]byte, len(keys))
		for i, key := range keys {
			found, _ := s.m.Share(key)
			values[i] = found
		}
		return true, nil
	})
	for i, value := range values {
		values[i] = append([]byte{}, value...)
	}
	return values, err
}

// ErrLengths is returned by MultiSet unless there is one value for each key.
var ErrLengths = errors.New("store: multi-set needs as many values as keys")

// MultiSet implements Store.
func (s *Memory) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return fmt.Errorf("%w: %d keys, %d values", ErrLengths, len(keys), len(values))
	}
	return s.do(ctx, func() {
		for i, key := range keys {
			s.m.Set(key, kv.Value{Bytes: values[i]})
		}
	})
}

// Delete implements Store.
func (s *Memory) Delete(ctx context.Context, key string) (was bool, err error) {
	err = s.do(ctx, func() { was = s.m.Delete(key) })
	return was, err
}

// NumKeys implements Store.
func (s *Memory) NumKeys(ctx context.Context) (n int64, err error) {
	err = s.do(ctx, func() { n = int64(s.m.Len()) })
	return n, err
}

// ListKeys implements Store.
func (s *Memory) ListKeys(ctx context.Context) (keys []string, err error) {
	err = s.do(ctx, func() { keys = s.m.Keys() })
	return keys, err
}

// QueuePush implements Store.
func (s *Memory) QueuePush(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, func() { s.m.Push(key, kv.Value{Bytes: value}) })
}

// QueuePop implements Store.
func (s *Memory) QueuePop(ctx context.Context, key string, block bool) (value []byte, err error) {
	err = s.block(ctx, func(w *kv.Waiter) (bool, error) {
		found, before := s.m.Pop(key)
		if before > 0 {
			value = append([]byte{}, found...)
			return true, nil
		}
		if !block {
			return false, ErrQueueEmpty
		}
		s.m.OnPush(w, key)
		return false, nil
	})
	return value, err
}

// QueueLen implements Store.
func (s *Memory) QueueLen(ctx context.Context, key string) (n int64, err error) {
	err = s.do(ctx, func() { n = int64(s.m.QueueLen(key)) })
	return n, err
}

// Barrier implements Store. A Memory that is served meets with the clients'
// calls of Barrier.
func (s *Memory) Barrier(ctx context.Context, key string, n int) error {
	arrived := false
	return s.block(ctx, func(w *kv.Waiter) (bool, error) {
		if arrived {
			return true, nil
		}
		arrived = true
		passed, err := s.m.Barrier(w, key, int64(n))
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
	return s.block(ctx, func(w *kv.Waiter) (bool, error) {
		n := int64(0)
		if value, ok := s.m.Get(key); ok {
			if n, ok = kv.ParseInt(value); !ok {
				return false, fmt.Errorf("store: %.200q: %w", key, ErrNotNumber)
			}
		}
		if enough(n) {
			return true, nil
		}
		s.m.OnChange(w, key)
		return false, nil
	})
}
