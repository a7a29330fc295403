// Package store is the key-value store in which agents and workers meet: the
// Store interface and the stores that need no server. NewMemory makes one that lives in
// this process, Prefix a name space inside another store. Package tcpstore serves a store
// to other processes and hosts in PyTorch's TCPStore protocol, and has its client.
//
// A store maps keys to byte strings. Beside the map, in a name space of their
// own, are queues. Keys and values may hold any bytes and may be empty. Nothing
// expires. Every operation is atomic: its effect is seen by all operations that
// start after it has returned.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-run/muster/store/internal/kv"
)

var (
	// ErrTimeout matches the errors of calls that a store's own time limit ended.
	ErrTimeout = errors.New("store: timed out")
	// ErrClosed is returned by calls on a store that has been closed, and by
	// calls that were blocked when it was.
	ErrClosed = kv.ErrClosed
	// ErrReset is returned by calls that were blocked when the store was emptied.
	ErrReset = kv.ErrReset
	// ErrQueueEmpty is returned by QueuePop on an empty queue.
	ErrQueueEmpty = kv.ErrQueueEmpty
	// ErrLengths is returned by MultiSet unless there is one value for each key.
	ErrLengths = kv.ErrLengths
	// ErrNotNumber matches the errors of Add and Barrier on a value that is not a
	// decimal number of 64 bits. A tcpstore.Client cannot tell and loses its
	// connection instead, as PyTorch's does.
	ErrNotNumber = kv.ErrNotNumber
)

// A Store is what every implementation offers. All methods may be called
// concurrently, and none keeps or changes a caller's slices; what they return
// belongs to the caller. A call blocked in one goroutine never holds up another
// goroutine's calls.
//
// Every call ends with the context's cause once that is done. It may have
// taken effect nevertheless, except in a call that waits for keys.
//
// Source: torch.distributed.Store.
type Store interface {
	// Set sets the value of a key.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns the value of a key. It blocks until the key exists.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal number stored at the key, 0 where there is
	// none, and returns the sum. Sums wrap around at 64 bits.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// CompareAndSet sets the key to desired if its value is expected, or if the
	// key does not exist and expected is empty. It returns desired if it did,
	// otherwise the value found, or expected if the key does not exist.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// Wait blocks until each of the keys has existed since the call, even if
	// not at the same time. A queue exists while it is not empty.
	Wait(ctx context.Context, keys ...string) error
	// Check reports whether all keys exist. A queue exists while it is not empty.
	Check(ctx context.Context, keys ...string) (bool, error)
	// Append appends to the value of a key and creates the key if need be.
	Append(ctx context.Context, key string, value []byte) error
	// MultiGet returns the values of several keys, read at one instant. It
	// blocks until all of them exist.
	MultiGet(ctx context.Context, keys []string) ([][]byte, error)
	// MultiSet sets keys[i] to values[i] for every i, all at one instant.
	MultiSet(ctx context.Context, keys []string, values [][]byte) error
	// Delete removes a key and reports whether it existed. It wakes nobody.
	Delete(ctx context.Context, key string) (bool, error)
	// NumKeys returns the number of keys, without queues.
	NumKeys(ctx context.Context) (int64, error)
	// ListKeys returns all keys in no particular order, without queues.
	ListKeys(ctx context.Context) ([]string, error)
	// QueuePush appends a value to a queue.
	QueuePush(ctx context.Context, key string, value []byte) error
	// QueuePop removes and returns the first value of a queue. If there is none
	// it blocks for one, or returns ErrQueueEmpty if block is false.
	QueuePop(ctx context.Context, key string, block bool) ([]byte, error)
	// QueueLen returns the number of values in a queue.
	QueueLen(ctx context.Context, key string) (int64, error)
	// Barrier blocks until n calls, this one included, have named the key. It
	// cannot be used again: later calls with the same key pass at once. A call
	// that the context ended still counts.
	Barrier(ctx context.Context, key string, n int) error
}

// NewMemory returns an empty store inside this process. It holds nothing that would
// have to be closed.
func NewMemory() Store { return kv.NewMemory() }

// A Mirror keeps the value of one key of a tcpstore.Server somewhere else, in a form that
// suits its owner better than bytes. Clients of the store notice nothing, except
// that the key always exists.
//
// Its methods are called with the store locked. They must not block and must not
// use the store. Code that holds a lock which they take must not use it either.
type Mirror interface {
	// Render is called before the value is read, compared or changed. Unless
	// changed is false, which says that the value is what the last Render
	// returned or the last Adopt was given, the value becomes the key's.
	// Nobody may change its bytes afterwards.
	Render() (value []byte, changed bool)
	// Adopt is called after somebody has written the value: set it, appended to
	// it, added to it, or won a comparison, even if it is what it was. Value is nil
	// if the key was deleted, or empty if it was set to nothing. Nobody
	// changes its bytes afterwards.
	Adopt(value []byte)
}

// A TimeoutError says which call ran out of the store's own time limit.
// Its Is method matches ErrTimeout.
type TimeoutError struct {
	Op    string        // Op is the method, in lower case
	Keys  []string      // Keys are those it waited for, the first few of them
	After time.Duration // After is the limit
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("store: %s timed out after %v, keys: %s", e.Op, e.After, quoteKeys(e.Keys))
}

// Is reports whether target is ErrTimeout.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// Timeout returns true; it makes the error one of net.Error's kind.
func (e *TimeoutError) Timeout() bool { return true }

func quoteKeys(keys []string) string {
	const most = 8
	text := ""
	for i, key := range keys {
		if i == most {
			return fmt.Sprintf("%s and %d more", text, len(keys)-most)
		}
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%.200q", key)
	}
	return text
}

// Barrier blocks until n calls, this one included, have named the key. It needs
// no more than Add, Set and Wait of the store, and so meets with PyTorch's
// PrefixStore.barrier and store_util.barrier, which use the same keys:
// key/num_members counts the arrivals, key/last_member is set by the last.
//
// Source: PrefixStore::barrier; store_util.barrier in elastic/utils/store.py.
func Barrier(ctx context.Context, s Store, key string, n int) error {
	arrived, err := s.Add(ctx, key+"/num_members", 1)
	if err != nil {
		return err
	}
	last := key + "/last_member"
	if arrived >= int64(n) {
		if err := s.Set(ctx, last, []byte("1")); err != nil {
			return err
		}
	}
	return s.Wait(ctx, last)
}
