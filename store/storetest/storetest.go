// Package storetest checks that a store behaves as store.Store says. One suite
// runs over every implementation, PyTorch's servers behind our client included.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/store"
)

// A Subject is an implementation to be tested.
type Subject struct {
	// Open returns n handles of one new, empty store, as n processes would
	// have them. It cleans up after itself through t.Cleanup.
	Open func(t testing.TB, n int) []store.Store

	// What PyTorch's servers do not do.
	NoQueues    bool // the legacy server has none
	NoSwapWakes bool // the legacy server wakes nobody on compare and set
	NoAppend    bool // append and multi-set came with PyTorch 2.0
	NoBarrier   bool // the request came with PyTorch 2.11
	NoListKeys  bool // the request came with PyTorch 2.9

	// Shared is set where the store has keys that are not the suite's, such as those
	// that a prefix hides. NumKeys then is not checked.
	Shared bool
	// BigValue is the size of the largest value to try. Default 8 MiB less one.
	BigValue int
	// Histories is how many concurrent histories are checked. Default 20.
	Histories int
}

// patience bounds a test's blocking calls; only a bug makes it matter.
const patience = 60 * time.Second

// Run runs the suite.
func Run(t *testing.T, s Subject) {
	if s.BigValue == 0 {
		s.BigValue = 8<<20 - 1
	}
	if s.Histories == 0 {
		s.Histories = 20
	}
	tests := []struct {
		name string
		skip bool
		run  func(*testing.T, *fixture)
	}{
		{"Set", false, testSet},
		{"BigValues", false, testBigValues},
		{"Copies", false, testCopies},
		{"Get", false, testGet},
		{"Add", false, testAdd},
		{"AddNotNumber", false, testAddNotNumber},
		{"AddConcurrent", false, testAddConcurrent},
		{"CompareAndSet", false, testCompareAndSet},
		{"Wait", false, testWait},
		{"WaitCancelled", false, testWaitCancelled},
		{"WaitAside", false, testWaitAside},
		{"Check", false, testCheck},
		{"Append", s.NoAppend, testAppend},
		{"Multi", s.NoAppend, testMulti},
		{"Delete", false, testDelete},
		{"Keys", s.NoListKeys, testKeys},
		{"Queue", s.NoQueues, testQueue},
		{"QueueBlocking", s.NoQueues, testQueueBlocking},
		{"QueueCancelled", s.NoQueues, testQueueCancelled},
		{"Barrier", s.NoBarrier, testBarrier},
		{"BarrierCancelled", s.NoBarrier, testBarrierCancelled},
		{"BarrierFunc", false, testBarrierFunc},
		{"Done", false, testDone},
		{"Linearizable", false, testLinearizable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.skip {
				t.Skip("the server does not have it")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tt.run(t, &fixture{T: t, Subject: s, ctx: ctx})
		})
	}
}

// fixture is one test's stores and context.
type fixture struct {
	*testing.T
	Subject
	ctx context.Context
}

func (f *fixture) one() store.Store { return f.Open(f, 1)[0] }

func (f *fixture) two() (a, b store.Store) {
	s := f.Open(f, 2)
	return s[0], s[1]
}

// ok fails the test unless there was no error.
func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// value fails the test unless the key has the value.
func (f *fixture) value(s store.Store, key, want string) {
	f.Helper()
	got, err := s.Get(f.ctx, key)
	if err != nil {
		f.Fatalf("get %.100q: %v", key, err)
	}
	if string(got) != want {
		f.Fatalf("get %.100q = %.100q, want %.100q", key, got, want)
	}
}

// inBackground runs f in a goroutine and returns what to call for its error.
func inBackground(f func() error) func() error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error { return <-done }
}

var odd = []string{"", "k", "a/b", "/", "//x", "clé", "\xff\xfe", "a\x00b", "init/", strings.Repeat("k", 8000)}

func testSet(t *testing.T, f *fixture) {
	a, b := f.two()
	for i, key := range odd {
		for _, value := range []string{"", "v", "\x00\xff", fmt.Sprint(i), strings.Repeat("x", 5000), "short again"} {
			f.ok(a.Set(f.ctx, key, []byte(value)))
			f.value(b, key, value)
		}
	}
	for i, key := range odd {
		f.ok(b.Set(f.ctx, key, fmt.Append(nil, i)))
	}
	for i, key := range odd {
		f.value(a, key, fmt.Sprint(i))
	}
}

func testBigValues(t *testing.T, f *fixture) {
	a, b := f.two()
	var sizes []int
	for size := 1; size < f.BigValue; size *= 8 {
		sizes = append(sizes, size-1, size, size+1)
	}
	sizes = append(sizes, f.BigValue)
	for _, size := range sizes {
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(i * 7 >> 3)
		}
		f.ok(a.Set(f.ctx, "big", value))
		got, err := b.Get(f.ctx, "big")
		f.ok(err)
		if !bytes.Equal(got, value) {
			t.Fatalf("a value of %d bytes came back changed, %d bytes", size, len(got))
		}
		got, err = b.CompareAndSet(f.ctx, "big", value, value[:size/2])
		f.ok(err)
		if !bytes.Equal(got, value[:size/2]) {
			t.Fatalf("compare and set of %d bytes returned %d others", size/2, len(got))
		}
	}
}

func testCopies(t *testing.T, f *fixture) {
	a := f.one()
	mine := []byte("mine")
	f.ok(a.Set(f.ctx, "k", mine))
	mine[0] = 'X'
	f.value(a, "k", "mine")
	got, err := a.Get(f.ctx, "k")
	f.ok(err)
	got[0] = 'X'
	f.value(a, "k", "mine")
	swapped, err := a.CompareAndSet(f.ctx, "k", []byte("mine"), []byte("ours"))
	f.ok(err)
	copy(swapped, "XXXX")
	f.value(a, "k", "ours")
	got, err = a.Get(f.ctx, "k")
	f.ok(err)
	f.ok(a.Set(f.ctx, "k", []byte("next")))
	if string(got) != "ours" {
		t.Errorf("setting the key changed a value returned before to %q", got)
	}
}

func testGet(t *testing.T, f *fixture) {
	a, b := f.two()
	var value []byte
	got := inBackground(func() (err error) {
		value, err = a.Get(f.ctx, "late")
		return err
	})
	f.ok(b.Set(f.ctx, "other", []byte("x")))
	f.ok(b.Set(f.ctx, "late", []byte("come")))
	f.ok(got())
	if string(value) != "come" {
		t.Errorf("get = %q, want %q", value, "come")
	}
}

func testAdd(t *testing.T, f *fixture) {
	a, b := f.two()
	for _, tt := range []struct {
		start string // "none" for no key
		delta int64
		want  int64
	}{
		{"none", 5, 5},
		{"none", 0, 0},
		{"none", math.MinInt64, math.MinInt64},
		{"5", 2, 7},
		{"7", -10, -3},
		{"-3", 3, 0},
		{" 7", 1, 8},
		{"\t\n\v\f\r-7", 1, -6},
		{"+7", 1, 8},
		{"12abc", 1, 13},
		{"9223372036854775807", 1, math.MinInt64},
		{"-9223372036854775808", -1, math.MaxInt64},
		{"00000000000000000000000000000000000000001", 1, 2},
	} {
		if tt.start == "none" {
			_, err := a.Delete(f.ctx, "n")
			f.ok(err)
		} else {
			f.ok(a.Set(f.ctx, "n", []byte(tt.start)))
		}
		got, err := b.Add(f.ctx, "n", tt.delta)
		f.ok(err)
		if got != tt.want {
			t.Errorf("%q + %d = %d, want %d", tt.start, tt.delta, got, tt.want)
		}
		f.value(a, "n", fmt.Sprint(tt.want))
	}
}

func testAddNotNumber(t *testing.T, f *fixture) {
	for _, value := range []string{"", "x", "-", " ", "9223372036854775808", "-9223372036854775809", "99999999999999999999999"} {
		s := f.Open(t, 2)
		f.ok(s[0].Set(f.ctx, "n", []byte(value)))
		if sum, err := s[0].Add(f.ctx, "n", 1); err == nil {
			t.Errorf("%q + 1 = %d, want an error", value, sum)
		}
		f.value(s[1], "n", value) // and the store continues
	}
}

func testAddConcurrent(t *testing.T, f *fixture) {
	const handles, each = 8, 50
	seen := make([]atomic.Int32, handles*each+1)
	var all sync.WaitGroup
	for _, s := range f.Open(t, handles) {
		all.Go(func() {
			for range each {
				n, err := s.Add(f.ctx, "n", 1)
				if err != nil || n < 1 || n > handles*each {
					t.Errorf("add = %d, %v", n, err)
					return
				}
				seen[n].Add(1)
			}
		})
	}
	all.Wait()
	for n := 1; n < len(seen); n++ {
		if seen[n].Load() != 1 {
			t.Errorf("%d was returned %d times", n, seen[n].Load())
		}
	}
}

// Source: the COMPARE_SET table of docs/tcpstore.md.
func testCompareAndSet(t *testing.T, f *fixture) {
	a, b := f.two()
	for _, tt := range []struct {
		name, start, expected, desired string // start "none" for no key
		want, after                    string // after "none" for no key
	}{
		{"missing, none expected", "none", "", "new", "new", "new"},
		{"missing, some expected", "none", "old", "new", "old", "none"},
		{"match", "one", "one", "two", "two", "two"},
		{"match, to empty", "one", "one", "", "", ""},
		{"match, no change", "one", "one", "one", "one", "one"},
		{"mismatch", "one", "zwei", "two", "one", "one"},
		{"mismatch, longer", "one", "onee", "two", "one", "one"},
		{"present, none expected", "one", "", "two", "one", "one"},
		{"empty, none expected", "", "", "two", "two", "two"},
		{"mismatch, already desired", "two", "one", "two", "two", "two"},
	} {
		if tt.start == "none" {
			_, err := a.Delete(f.ctx, "k")
			f.ok(err)
		} else {
			f.ok(a.Set(f.ctx, "k", []byte(tt.start)))
		}
		got, err := b.CompareAndSet(f.ctx, "k", []byte(tt.expected), []byte(tt.desired))
		f.ok(err)
		if string(got) != tt.want {
			t.Errorf("%s: returned %q, want %q", tt.name, got, tt.want)
		}
		exists, err := a.Check(f.ctx, "k")
		f.ok(err)
		if exists != (tt.after != "none") {
			t.Errorf("%s: afterwards the key exists: %v", tt.name, exists)
		} else if exists {
			f.value(a, "k", tt.after)
		}
	}
	if f.NoSwapWakes {
		return
	}
	waited := inBackground(func() error { return a.Wait(f.ctx, "swapped") })
	_, err := b.CompareAndSet(f.ctx, "swapped", nil, []byte("x"))
	f.ok(err)
	f.ok(waited())
}

func testWait(t *testing.T, f *fixture) {
	a, b := f.two()
	f.ok(a.Wait(f.ctx))
	f.ok(a.Set(f.ctx, "here", nil))
	f.ok(a.Wait(f.ctx, "here"))
	f.ok(a.Wait(f.ctx, "here", "here"))

	var present atomic.Int32
	var waits []func() error
	for _, s := range []store.Store{a, b, a} {
		waits = append(waits, inBackground(func() error {
			err := s.Wait(f.ctx, "w1", "here", "w2", "w2", "w3")
			if n := present.Load(); err == nil && n != 3 {
				err = fmt.Errorf("wait returned when %d of 3 keys were set", n)
			}
			return err
		}))
	}
	for i, key := range []string{"w2", "w3", "w1"} {
		present.Add(1)
		if i == 1 {
			_, err := b.Add(f.ctx, key, 1)
			f.ok(err)
			continue
		}
		f.ok(b.Set(f.ctx, key, []byte("x")))
	}
	for _, wait := range waits {
		f.ok(wait())
	}
}

func testWaitCancelled(t *testing.T, f *fixture) {
	a, b := f.two()
	cause := errors.New("the cause")
	for range 20 {
		ctx, cancel := context.WithCancelCause(f.ctx)
		wait := inBackground(func() error { return a.Wait(ctx, "never") })
		get := inBackground(func() error { _, err := a.Get(ctx, "never"); return err })
		multi := inBackground(func() error { _, err := a.MultiGet(ctx, []string{"never"}); return err })
		f.ok(b.Set(f.ctx, "other", nil)) // something between start and end
		cancel(cause)
		for name, end := range map[string]func() error{"wait": wait, "get": get, "multi-get": multi} {
			if err := end(); !errors.Is(err, cause) {
				t.Fatalf("cancelled %s: %v, want the context's cause", name, err)
			}
		}
		f.ok(a.Wait(f.ctx, "other"))
	}
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Millisecond)
	defer cancel()
	if err := a.Wait(ctx, "never"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait past its context's deadline: %v", err)
	}
	f.ok(b.Set(f.ctx, "never", []byte("now")))
	f.value(a, "never", "now")
}

// testWaitAside has calls continue while others on the same handle are blocked.
func testWaitAside(t *testing.T, f *fixture) {
	a := f.one()
	var waits []func() error
	for i := range 10 {
		waits = append(waits, inBackground(func() error { return a.Wait(f.ctx, fmt.Sprint("aside", i)) }))
	}
	for i := range 10 {
		n, err := a.Add(f.ctx, "n", 1)
		f.ok(err)
		if n != int64(i+1) {
			t.Fatalf("add = %d, want %d", n, i+1)
		}
		f.ok(a.Set(f.ctx, fmt.Sprint("aside", 9-i), nil))
	}
	for _, wait := range waits {
		f.ok(wait())
	}
}

func testCheck(t *testing.T, f *fixture) {
	a, b := f.two()
	f.ok(b.Set(f.ctx, "x", nil))
	f.ok(b.Set(f.ctx, "y", []byte("1")))
	for _, tt := range []struct {
		keys []string
		want bool
	}{
		{nil, true}, {[]string{"x"}, true}, {[]string{"x", "y", "x"}, true},
		{[]string{"z"}, false}, {[]string{"x", "z"}, false}, {[]string{"z", "x"}, false},
	} {
		got, err := a.Check(f.ctx, tt.keys...)
		f.ok(err)
		if got != tt.want {
			t.Errorf("check %q = %v, want %v", tt.keys, got, tt.want)
		}
	}
}

func testAppend(t *testing.T, f *fixture) {
	a, b := f.two()
	want := ""
	waited := inBackground(func() error { return b.Wait(f.ctx, "text") })
	for _, part := range []string{"", "one", "", "two", strings.Repeat("x", 5000), "end"} {
		f.ok(a.Append(f.ctx, "text", []byte(part)))
		want += part
		f.value(b, "text", want)
	}
	f.ok(waited())
	f.ok(b.Set(f.ctx, "text", []byte("short")))
	f.ok(b.Append(f.ctx, "text", []byte("er")))
	f.value(a, "text", "shorter")
}

func testMulti(t *testing.T, f *fixture) {
	a, b := f.two()
	var keys []string
	var values [][]byte
	for i := range 100 {
		keys = append(keys, fmt.Sprint("m", i))
		values = append(values, bytes.Repeat([]byte{byte(i)}, i*i))
	}
	waited := inBackground(func() error { return b.Wait(f.ctx, "m99", "m0") })
	var early [][]byte
	got := inBackground(func() (err error) {
		early, err = b.MultiGet(f.ctx, []string{"m3", "m1", "m3"})
		return err
	})
	f.ok(a.MultiSet(f.ctx, keys, values))
	f.ok(waited())
	f.ok(got())
	if diff := cmp.Diff([][]byte{values[3], values[1], values[3]}, early); diff != "" {
		t.Errorf("blocking multi-get (-want +got):\n%s", diff)
	}
	all, err := b.MultiGet(f.ctx, keys)
	f.ok(err)
	for i := range keys {
		if !bytes.Equal(all[i], values[i]) {
			t.Fatalf("multi-get: item %d has %d bytes %.10q, want %d bytes %.10q", i, len(all[i]), all[i], len(values[i]), values[i])
		}
	}
	none, err := b.MultiGet(f.ctx, nil)
	f.ok(err)
	if len(none) > 0 {
		t.Errorf("multi-get of nothing: %q", none)
	}
	f.ok(a.MultiSet(f.ctx, nil, nil))
	f.ok(a.MultiSet(f.ctx, []string{"twice", "twice"}, [][]byte{[]byte("1"), []byte("2")}))
	f.value(b, "twice", "2")
	if err := a.MultiSet(f.ctx, []string{"k"}, nil); !errors.Is(err, store.ErrLengths) {
		t.Errorf("multi-set of one key and no value: %v", err)
	}
}

func testDelete(t *testing.T, f *fixture) {
	a, b := f.two()
	f.ok(a.Set(f.ctx, "k", []byte("v")))
	for i, want := range []bool{true, false} {
		got, err := b.Delete(f.ctx, "k")
		f.ok(err)
		if got != want {
			t.Errorf("delete number %d = %v, want %v", i+1, got, want)
		}
	}
	exists, err := a.Check(f.ctx, "k")
	f.ok(err)
	if exists {
		t.Error("the deleted key exists")
	}
	n, err := a.Add(f.ctx, "k", 2)
	f.ok(err)
	if n != 2 {
		t.Errorf("add to a deleted key = %d, want 2", n)
	}
}

func testKeys(t *testing.T, f *fixture) {
	a, b := f.two()
	before, err := a.NumKeys(f.ctx)
	f.ok(err)
	none, err := a.ListKeys(f.ctx)
	f.ok(err)
	if len(none) > 0 || before > 0 && !f.Shared {
		t.Errorf("a new store has %d keys: %q", before, none)
	}
	for _, key := range odd {
		f.ok(a.Set(f.ctx, key, nil))
	}
	_, err = a.Delete(f.ctx, "k")
	f.ok(err)
	if !f.NoQueues {
		f.ok(a.QueuePush(f.ctx, "queue", nil))
	}
	after, err := b.NumKeys(f.ctx)
	f.ok(err)
	want := slices.DeleteFunc(slices.Clone(odd), func(key string) bool { return key == "k" })
	if after-before != int64(len(want)) {
		t.Errorf("number of keys = %d, want %d more than %d", after, len(want), before)
	}
	got, err := b.ListKeys(f.ctx)
	f.ok(err)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list of keys (-want +got):\n%.2000s", diff)
	}
}

func testQueue(t *testing.T, f *fixture) {
	a, b := f.two()
	length := func(want int64) {
		t.Helper()
		got, err := b.QueueLen(f.ctx, "q")
		f.ok(err)
		if got != want {
			t.Errorf("queue length = %d, want %d", got, want)
		}
	}
	empty := func() {
		t.Helper()
		length(0)
		if got, err := a.QueuePop(f.ctx, "q", false); !errors.Is(err, store.ErrQueueEmpty) {
			t.Errorf("pop of an empty queue = %q, %v", got, err)
		}
		exists, err := a.Check(f.ctx, "q")
		f.ok(err)
		if exists {
			t.Error("an empty queue exists")
		}
	}
	empty()
	var items []string
	for i := range 200 {
		items = append(items, strings.Repeat(fmt.Sprint(i), i%5*i*3))
	}
	next := 0
	for i, item := range items {
		f.ok(a.QueuePush(f.ctx, "q", []byte(item)))
		if i%3 == 0 {
			got, err := b.QueuePop(f.ctx, "q", i%2 == 0)
			f.ok(err)
			if string(got) != items[next] {
				t.Fatalf("item %d = %.50q, want %.50q", next, got, items[next])
			}
			next++
		}
		length(int64(i + 1 - next))
	}
	exists, err := a.Check(f.ctx, "q")
	f.ok(err)
	if !exists {
		t.Error("a queue that is not empty does not exist")
	}
	f.ok(a.Wait(f.ctx, "q"))
	was, err := a.Delete(f.ctx, "q")
	f.ok(err)
	if was {
		t.Error("delete saw the queue")
	}
	for ; next < len(items); next++ {
		got, err := b.QueuePop(f.ctx, "q", true)
		f.ok(err)
		if string(got) != items[next] {
			t.Fatalf("item %d = %.50q, want %.50q", next, got, items[next])
		}
	}
	empty()
	// A key of the same name is another thing.
	f.ok(a.Set(f.ctx, "q", []byte("value")))
	f.ok(a.QueuePush(f.ctx, "q", []byte("item")))
	f.value(b, "q", "value")
	length(1)
}

func testQueueBlocking(t *testing.T, f *fixture) {
	const handles, each = 4, 25
	var mu sync.Mutex
	got := map[string]int{}
	var all sync.WaitGroup
	stores := f.Open(t, handles+1)
	for _, s := range stores[1:] {
		all.Go(func() {
			for range each {
				item, err := s.QueuePop(f.ctx, "q", true)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				got[string(item)]++
				mu.Unlock()
			}
		})
	}
	for i := range handles * each {
		f.ok(stores[0].QueuePush(f.ctx, "q", fmt.Append(nil, i)))
	}
	all.Wait()
	for i := range handles * each {
		if n := got[fmt.Sprint(i)]; n != 1 {
			t.Errorf("item %d was popped %d times", i, n)
		}
	}
}

// testQueueCancelled has a push meet a pop that is being given up: the item
// must not be lost, and another that waits must get it.
func testQueueCancelled(t *testing.T, f *fixture) {
	s := f.Open(t, 3)
	for i := range 30 {
		ctx, cancel := context.WithCancel(f.ctx)
		var item []byte
		first := inBackground(func() (err error) { item, err = s[0].QueuePop(ctx, "q", true); return err })
		push := inBackground(func() error { return s[2].QueuePush(f.ctx, "q", fmt.Append(nil, i)) })
		cancel()
		f.ok(push())
		if err := first(); err != nil {
			item, err = s[1].QueuePop(f.ctx, "q", true)
			f.ok(err)
		}
		if string(item) != fmt.Sprint(i) {
			t.Fatalf("popped %q, want %d", item, i)
		}
	}
}

func testBarrier(t *testing.T, f *fixture) {
	f.barrier(store.Store.Barrier)
}

func testBarrierFunc(t *testing.T, f *fixture) {
	f.barrier(func(s store.Store, ctx context.Context, key string, n int) error {
		return store.Barrier(ctx, s, key, n)
	})
}

func (f *fixture) barrier(barrier func(store.Store, context.Context, string, int) error) {
	const n = 5
	stores := f.Open(f, n)
	for round := range 10 {
		key := fmt.Sprint("barrier", round)
		var arrived atomic.Int32
		var passes []func() error
		for _, s := range stores {
			passes = append(passes, inBackground(func() error {
				arrived.Add(1)
				err := barrier(s, f.ctx, key, n)
				if got := arrived.Load(); err == nil && got != n {
					err = fmt.Errorf("passed when %d of %d had arrived", got, n)
				}
				return err
			}))
		}
		for _, pass := range passes {
			f.ok(pass())
		}
		f.ok(barrier(stores[0], f.ctx, key, n)) // open for good
	}
	f.ok(barrier(stores[0], f.ctx, "alone", 1))
	f.ok(barrier(stores[0], f.ctx, "nobody", 0))
}

func testBarrierCancelled(t *testing.T, f *fixture) {
	a, b := f.two()
	ctx, cancel := context.WithTimeout(f.ctx, time.Second) // to arrive in; not every store shows that
	defer cancel()
	if err := a.Barrier(ctx, "b", 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a barrier with one of two: %v", err)
	}
	f.ok(b.Barrier(f.ctx, "b", 2)) // the first arrival counts
}

// testDone has every method called with a context that is done.
func testDone(t *testing.T, f *fixture) {
	a, b := f.two()
	cause := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(f.ctx)
	cancel(cause)
	f.ok(a.Set(f.ctx, "k", []byte("1")))
	for name, call := range map[string]func() error{
		"set":      func() error { return a.Set(ctx, "k", []byte("2")) },
		"get":      func() error { _, err := a.Get(ctx, "k"); return err },
		"add":      func() error { _, err := a.Add(ctx, "k", 1); return err },
		"cas":      func() error { _, err := a.CompareAndSet(ctx, "k", []byte("1"), nil); return err },
		"wait":     func() error { return a.Wait(ctx, "k") },
		"check":    func() error { _, err := a.Check(ctx, "k"); return err },
		"append":   func() error { return a.Append(ctx, "k", []byte("2")) },
		"multiget": func() error { _, err := a.MultiGet(ctx, []string{"k"}); return err },
		"multiset": func() error { return a.MultiSet(ctx, []string{"k"}, [][]byte{nil}) },
		"delete":   func() error { _, err := a.Delete(ctx, "k"); return err },
		"numkeys":  func() error { _, err := a.NumKeys(ctx); return err },
		"listkeys": func() error { _, err := a.ListKeys(ctx); return err },
		"push":     func() error { return a.QueuePush(ctx, "k", nil) },
		"pop":      func() error { _, err := a.QueuePop(ctx, "k", true); return err },
		"len":      func() error { _, err := a.QueueLen(ctx, "k"); return err },
		"barrier":  func() error { return a.Barrier(ctx, "k2", 1) },
	} {
		if err := call(); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want the context's cause", name, err)
		}
	}
	f.value(b, "k", "1")
}
