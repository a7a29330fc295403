package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/muster-run/muster/store"
)

// An operation is one call of a recorded history.
type operation struct {
	op       string
	key      string
	value    string // set, append, swap: the new value; push: the item
	expected string // swap
	delta    int64  // add
}

// A state is what the model knows of one key.
type state struct {
	exists bool
	value  string
	queue  string // items are one byte each
}

// result is what a call returned.
type result struct {
	value string
	n     int64
	ok    bool
}

// step is the sequential specification of a store's key.
func (s state) step(in operation) (state, result) {
	switch in.op {
	case "set":
		s.exists, s.value = true, in.value
		return s, result{}
	case "append":
		s.exists, s.value = true, s.value+in.value
		return s, result{}
	case "add":
		n, _ := strconv.ParseInt(s.value, 10, 64)
		n += in.delta
		s.exists, s.value = true, strconv.FormatInt(n, 10)
		return s, result{n: n}
	case "swap":
		switch {
		case !s.exists && in.expected != "":
			return s, result{value: in.expected}
		case s.exists && s.value != in.expected:
			return s, result{value: s.value}
		}
		s.exists, s.value = true, in.value
		return s, result{value: in.value}
	case "check":
		return s, result{ok: s.exists || s.queue != ""}
	case "delete":
		was := s.exists
		s.exists, s.value = false, ""
		return s, result{ok: was}
	case "push":
		s.queue += in.value
		return s, result{}
	case "pop":
		if s.queue == "" {
			return s, result{}
		}
		item := s.queue[:1]
		s.queue = s.queue[1:]
		return s, result{value: item, ok: true}
	case "len":
		return s, result{n: int64(len(s.queue))}
	}
	panic("unknown operation " + in.op)
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		after, want := s.(state).step(in.(operation))
		return want == out.(result), after
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

// do performs an operation on a real store.
func do(ctx context.Context, s store.Store, in operation) (out result, err error) {
	switch in.op {
	case "set":
		err = s.Set(ctx, in.key, []byte(in.value))
	case "append":
		err = s.Append(ctx, in.key, []byte(in.value))
	case "add":
		out.n, err = s.Add(ctx, in.key, in.delta)
	case "swap":
		var value []byte
		value, err = s.CompareAndSet(ctx, in.key, []byte(in.expected), []byte(in.value))
		out.value = string(value)
	case "check":
		out.ok, err = s.Check(ctx, in.key)
	case "delete":
		out.ok, err = s.Delete(ctx, in.key)
	case "push":
		err = s.QueuePush(ctx, in.key, []byte(in.value))
	case "pop":
		var item []byte
		item, err = s.QueuePop(ctx, in.key, false)
		if out.ok = err == nil; errors.Is(err, store.ErrQueueEmpty) {
			err = nil
		}
		out.value = string(item)
	case "len":
		out.n, err = s.QueueLen(ctx, in.key)
	}
	return out, err
}

// testLinearizable records what concurrent handles see and checks that some
// order of the calls explains it in which no call comes before one that had
// returned when it started.
func testLinearizable(t *testing.T, f *fixture) {
	const handles, each = 6, 25
	kinds := []string{"set", "add", "add", "swap", "swap", "swap", "check", "delete"}
	if !f.NoAppend {
		kinds = append(kinds, "append")
	}
	if !f.NoQueues {
		kinds = append(kinds, "push", "push", "pop", "pop", "len")
	}
	for range f.Histories {
		seed := rand.Uint64()
		var mu sync.Mutex
		var history []porcupine.Operation
		var all sync.WaitGroup
		start := time.Now()
		for client, s := range f.Open(t, handles) {
			random := rand.New(rand.NewPCG(seed, uint64(client)))
			all.Go(func() {
				for range each {
					digit := func() string { return strconv.Itoa(random.IntN(10)) }
					in := operation{
						op: kinds[random.IntN(len(kinds))], key: "k" + strconv.Itoa(random.IntN(2)),
						value: digit(), delta: int64(random.IntN(7) - 3),
					}
					if in.op == "swap" && random.IntN(3) > 0 {
						in.expected = digit()
					}
					if in.op == "append" {
						in.value = strconv.Itoa(random.IntN(10)) // the value stays a number
					}
					call := time.Since(start)
					out, err := do(f.ctx, s, in)
					end := time.Since(start)
					if err != nil {
						t.Errorf("%+v: %v", in, err)
						return
					}
					mu.Lock()
					history = append(history, porcupine.Operation{
						ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(end),
					})
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		switch porcupine.CheckOperationsTimeout(model, history, 2*time.Minute) {
		case porcupine.Unknown:
			t.Errorf("seed %d: no verdict in time", seed)
		case porcupine.Illegal:
			t.Errorf("seed %d: no order of the calls explains what they returned:\n%s", seed, explain(history))
			return
		}
	}
}

func explain(history []porcupine.Operation) string {
	text := ""
	for _, op := range history {
		text += fmt.Sprintf("%8dns-%8dns client %d: %s\n", op.Call, op.Return, op.ClientId, model.DescribeOperation(op.Input, op.Output))
	}
	return text
}
