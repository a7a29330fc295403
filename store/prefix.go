package store

import (
	"context"
	"strings"
)

// Prefix returns a view of s in which every key is preceded by prefix and "/".
// ListKeys lists the view's keys only; NumKeys counts those of the whole store.
// Barrier is the function of that name. Closing s is the caller's business.
//
// Source: torch.distributed.PrefixStore.
func Prefix(prefix string, s Store) Store {
	return &prefixStore{prefix: prefix + "/", s: s}
}

type prefixStore struct {
	prefix string
	s      Store
}

func (p *prefixStore) all(keys []string) []string {
	full := make([]string, len(keys))
	for i, key := range keys {
		full[i] = p.prefix + key
	}
	return full
}

func (p *prefixStore) Set(ctx context.Context, key string, value []byte) error {
	return p.s.Set(ctx, p.prefix+key, value)
}

func (p *prefixStore) Get(ctx context.Context, key string) ([]byte, error) {
	return p.s.Get(ctx, p.prefix+key)
}

func (p *prefixStore) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.s.Add(ctx, p.prefix+key, delta)
}

func (p *prefixStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return p.s.CompareAndSet(ctx, p.prefix+key, expected, desired)
}

func (p *prefixStore) Wait(ctx context.Context, keys ...string) error {
	return p.s.Wait(ctx, p.all(keys)...)
}

func (p *prefixStore) Check(ctx context.Context, keys ...string) (bool, error) {
	return p.s.Check(ctx, p.all(keys)...)
}

func (p *prefixStore) Append(ctx context.Context, key string, value []byte) error {
	return p.s.Append(ctx, p.prefix+key, value)
}

func (p *prefixStore) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	return p.s.MultiGet(ctx, p.all(keys))
}

func (p *prefixStore) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return p.s.MultiSet(ctx, p.all(keys), values)
}

func (p *prefixStore) Delete(ctx context.Context, key string) (bool, error) {
	return p.s.Delete(ctx, p.prefix+key)
}

func (p *prefixStore) NumKeys(ctx context.Context) (int64, error) { return p.s.NumKeys(ctx) }

func (p *prefixStore) ListKeys(ctx context.Context) ([]string, error) {
	all, err := p.s.ListKeys(ctx)
	if err != nil {
		return nil, err
	}
	keys := all[:0]
	for _, key := range all {
		if rest, ok := strings.CutPrefix(key, p.prefix); ok {
			keys = append(keys, rest)
		}
	}
	return keys, nil
}

func (p *prefixStore) QueuePush(ctx context.Context, key string, value []byte) error {
	return p.s.QueuePush(ctx, p.prefix+key, value)
}

func (p *prefixStore) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	return p.s.QueuePop(ctx, p.prefix+key, block)
}

func (p *prefixStore) QueueLen(ctx context.Context, key string) (int64, error) {
	return p.s.QueueLen(ctx, p.prefix+key)
}

func (p *prefixStore) Barrier(ctx context.Context, key string, n int) error {
	return Barrier(ctx, p, key, n)
}
