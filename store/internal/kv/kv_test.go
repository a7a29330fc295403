package kv_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/muster-run/muster/store/internal/kv"
)

// told is a waiter that remembers.
type told struct {
	kv.Waiter
	fired, delivered int
}

func (w *told) Fire() bool { w.fired++; return true }
func (w *told) Deliver()   { w.delivered++ }

func newTold() *told {
	w := &told{}
	w.Notifier = w
	return w
}

// Source: docs/tcpstore.md, "Semantics".
func TestWaiters(t *testing.T) {
	type m = *kv.Map
	set := func(key string) func(m) { return func(m m) { m.Set(key, kv.Value{}) } }
	push := func(key string) func(m) { return func(m m) { m.Push(key, kv.Value{}) } }
	tests := []struct {
		name   string
		before []func(m)
		keys   [][]string // each waiter's
		after  []func(m)
		want   []int // how often each is told
	}{
		{"present", []func(m){set("a")}, [][]string{{"a"}, {}}, nil, []int{0, 0}},
		{"created", nil, [][]string{{"a"}, {"b"}, {"a"}}, []func(m){set("a")}, []int{1, 0, 1}},
		{"all needed", nil, [][]string{{"a", "b"}}, []func(m){set("a")}, []int{0}},
		{"counting, not rechecking", nil, [][]string{{"a", "b"}},
			[]func(m){set("a"), func(m m) { m.Delete("a") }, set("b")}, []int{1}},
		{"set twice counts once", nil, [][]string{{"a", "b"}}, []func(m){set("a"), set("a")}, []int{0}},
		{"listed twice", nil, [][]string{{"a", "a"}}, []func(m){set("a")}, []int{1}},
		{"append", nil, [][]string{{"a"}}, []func(m){func(m m) { m.Append("a", kv.Value{}) }}, []int{1}},
		{"add", nil, [][]string{{"a"}}, []func(m){func(m m) { m.Add("a", 1) }}, []int{1}},
		{"swap that creates", nil, [][]string{{"a"}}, []func(m){func(m m) { m.CompareAndSet("a", nil, kv.Value{}) }}, []int{1}},
		{"swap that fails", nil, [][]string{{"a"}}, []func(m){func(m m) { m.CompareAndSet("a", []byte("x"), kv.Value{}) }}, []int{0}},
		{"delete", []func(m){set("b")}, [][]string{{"a"}}, []func(m){func(m m) { m.Delete("b") }}, []int{0}},
		{"queue not empty", []func(m){push("q")}, [][]string{{"q"}}, nil, []int{0}},
		{"a push wakes one", nil, [][]string{{"q"}, {"q"}}, []func(m){push("q")}, []int{1, 0}},
		{"two pushes wake two", nil, [][]string{{"q"}, {"q"}, {"q"}}, []func(m){push("q"), push("q")}, []int{1, 1, 0}},
		{"a push passes by who needs more", nil, [][]string{{"q", "k"}, {"q"}}, []func(m){push("q")}, []int{0, 1}},
		{"queue and key", nil, [][]string{{"q", "k"}}, []func(m){push("q"), set("k")}, []int{1}},
		{"queue listed twice", nil, [][]string{{"q", "q"}}, []func(m){push("q")}, []int{1}},
		{"key of a queue's name", nil, [][]string{{"q"}, {"q"}}, []func(m){set("q")}, []int{1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := kv.New()
			m.Lock()
			for _, f := range tt.before {
				f(m)
			}
			var waiters []*told
			for _, keys := range tt.keys {
				w := newTold()
				if done := m.Wait(&w.Waiter, keys...); done == w.Parked() {
					t.Errorf("wait for %q: done %v, parked %v", keys, done, w.Parked())
				}
				waiters = append(waiters, w)
			}
			m.Unlock()
			for _, f := range tt.after {
				m.Lock()
				f(m)
				m.Unlock()
			}
			for i, w := range waiters {
				if w.fired != tt.want[i] || w.delivered != tt.want[i] {
					t.Errorf("waiter %d was told %d times and delivered to %d, want %d", i, w.fired, w.delivered, tt.want[i])
				}
			}
		})
	}
}

// Source: docs/tcpstore.md, "BARRIER".
func TestBarrier(t *testing.T) {
	m := kv.New()
	m.Lock()
	defer m.Unlock()
	arrive := func(n int64, want bool) *told {
		t.Helper()
		w := newTold()
		got, err := m.Barrier(&w.Waiter, "b", n)
		if err != nil || got != want {
			t.Fatalf("passed %v, %v, want %v", got, err, want)
		}
		return w
	}
	forKey, change := newTold(), newTold()
	m.Wait(&forKey.Waiter, "b")
	m.OnChange(&change.Waiter, "b")
	first := arrive(3, false)
	if forKey.fired != 1 || change.fired != 1 || first.fired != 0 {
		t.Errorf("first arrival told who waits for the key %d times, for a change %d, and itself %d", forKey.fired, change.fired, first.fired)
	}
	second := arrive(3, false)
	m.Cancel(&first.Waiter)
	arrive(3, true)
	if first.fired != 0 || second.fired != 1 {
		t.Errorf("the last arrival told the one that left %d times, the other %d", first.fired, second.fired)
	}
	arrive(3, true)
	arrive(0, true)
	parked := arrive(99, false)
	m.Set("b", kv.Value{Bytes: []byte("0")})
	if parked.fired != 1 {
		t.Errorf("setting the key told the parked one %d times", parked.fired)
	}
	m.Set("b", kv.Value{Bytes: []byte("x")})
	w := newTold()
	if _, err := m.Barrier(&w.Waiter, "b", 1); err != kv.ErrNotNumber || w.Parked() {
		t.Errorf("barrier on a word: %v", err)
	}
}

// TestHandOver has a waiter leave that a push had woken.
func TestHandOver(t *testing.T) {
	for _, popped := range []bool{false, true} {
		m := kv.New()
		m.Lock()
		first, second := newTold(), newTold()
		m.Wait(&first.Waiter, "q")
		m.Wait(&second.Waiter, "q")
		m.Push("q", kv.Value{})
		if popped {
			first.Popped("q")
		}
		m.Cancel(&first.Waiter)
		if want := map[bool]int{false: 1, true: 0}[popped]; second.fired != want {
			t.Errorf("popped %v: the second was told %d times, want %d", popped, second.fired, want)
		}
		m.Unlock()
	}
}

// TestRandomWaits checks the lists of waiters against a slow model.
func TestRandomWaits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	m := kv.New()
	type wait struct {
		*told
		missing map[string]bool
	}
	var waits []*wait
	exists := map[string]bool{}
	for range 20_000 {
		key := fmt.Sprint("k", random.IntN(6))
		m.Lock()
		switch random.IntN(5) {
		case 0:
			w := &wait{newTold(), map[string]bool{}}
			var keys []string
			for range random.IntN(4) {
				key := fmt.Sprint("k", random.IntN(6))
				keys = append(keys, key)
				if !exists[key] {
					w.missing[key] = true
				}
			}
			if done := m.Wait(&w.Waiter, keys...); done != (len(w.missing) == 0) {
				t.Fatalf("wait for %q: %v", keys, done)
			} else if !done {
				waits = append(waits, w)
			}
		case 1, 2:
			m.Set(key, kv.Value{})
			exists[key] = true
			for _, w := range waits {
				delete(w.missing, key)
			}
		case 3:
			if m.Delete(key) != exists[key] {
				t.Fatal("delete")
			}
			delete(exists, key)
		case 4:
			if len(waits) > 0 {
				i := random.IntN(len(waits))
				m.Cancel(&waits[i].Waiter)
				waits = append(waits[:i], waits[i+1:]...)
			}
		}
		m.Unlock()
		left := waits[:0]
		for _, w := range waits {
			if (w.fired == 1) != (len(w.missing) == 0) {
				t.Fatalf("told %d times, missing %v", w.fired, w.missing)
			}
			if w.fired == 0 {
				left = append(left, w)
			}
		}
		waits = left
	}
}

// TestShared checks that a value handed out for ever is never written to.
func TestShared(t *testing.T) {
	m := kv.New()
	m.Lock()
	defer m.Unlock()
	m.Set("k", kv.Value{Bytes: []byte("first")})
	held, _ := m.Share("k")
	m.Append("k", kv.Value{Bytes: []byte("more")})
	m.Set("k", kv.Value{Bytes: []byte("xxxxx")})
	if string(held) != "first" {
		t.Errorf("the value held became %q", held)
	}
	big := []byte(strings.Repeat("a", 9000))
	reply := m.CompareAndSet("k", []byte("xxxxx"), kv.Value{Bytes: big, Keep: true})
	m.Set("k", kv.Value{Bytes: []byte(strings.Repeat("b", 9000))})
	if reply[0] != 'a' {
		t.Error("the reply to a swap was overwritten")
	}
}

// TestInPlace checks that overwriting a value again and again makes no garbage.
func TestInPlace(t *testing.T) {
	m := kv.New()
	value := make([]byte, 1000)
	one := func() {
		m.Lock()
		m.Set("key", kv.Value{Bytes: value})
		m.Get("key")
		m.Add("counter", 1)
		m.Unlock()
	}
	one()
	if n := testing.AllocsPerRun(1000, one); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestParseInt(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"-0", 0, true}, {"12abc", 12, true}, {" \t\n\v\f\r+7 ", 7, true},
		{"9223372036854775807", 1<<63 - 1, true}, {"-9223372036854775808", -1 << 63, true},
		{"9223372036854775808", 0, false}, {"-9223372036854775809", 0, false},
		{"18446744073709551617", 0, false}, {"0x10", 0, true}, {"1e9", 1, true},
		{"", 0, false}, {" ", 0, false}, {"+", 0, false}, {"--1", 0, false}, {"- 1", 0, false}, {"a1", 0, false},
	} {
		if got, ok := kv.ParseInt([]byte(tt.text)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %d, %v, want %d, %v", tt.text, got, ok, tt.want, tt.ok)
		}
	}
}
