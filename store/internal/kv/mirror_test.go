package kv_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/store/internal/kv"
)

// A mirror remembers what it was asked and told.
type mirror struct {
	value   string
	changed bool
	calls   []string
}

func (m *mirror) Render() ([]byte, bool) {
	m.calls = append(m.calls, "render")
	changed := m.changed
	m.changed = false
	return []byte(m.value), changed
}

func (m *mirror) Adopt(value []byte) {
	call := "adopt " + string(value)
	if value == nil {
		call = "adopt nil"
	}
	m.calls = append(m.calls, call)
	m.value, m.changed = string(value), false
}

// put is what the mirror's owner does.
func (m *mirror) put(value string) { m.value, m.changed = value, true }

func value(s string) kv.Value { return kv.Value{Bytes: []byte(s)} }

func TestMirrorCalls(t *testing.T) {
	type m = *kv.Map
	get := func(m m) string { v, ok := m.Get("k"); return fmt.Sprintf("%s %v", v, ok) }
	swap := func(expected, desired string) func(m) string {
		return func(m m) string { return string(m.CompareAndSet("k", []byte(expected), value(desired))) }
	}
	tests := []struct {
		name  string
		do    func(m) string
		want  string
		calls []string
		after string
	}{
		{"get", get, "7 true", []string{"render"}, "7"},
		{"share", func(m m) string { v, ok := m.Share("k"); return fmt.Sprintf("%s %v", v, ok) }, "7 true", []string{"render"}, "7"},
		{"has", func(m m) string { return fmt.Sprint(m.Has("k")) }, "true", nil, "7"},
		{"len", func(m m) string { return fmt.Sprint(m.Len()) }, "1", nil, "7"},
		{"keys", func(m m) string { return fmt.Sprint(m.Keys()) }, "[k]", nil, "7"},
		{"set", func(m m) string { m.Set("k", value("new")); return "" }, "", []string{"adopt new"}, "new"},
		{"set to what it is", func(m m) string { m.Set("k", value("7")); return "" }, "", []string{"adopt 7"}, "7"},
		{"set to nothing", func(m m) string { m.Set("k", value("")); return "" }, "", []string{"adopt "}, ""},
		{"set to no bytes", func(m m) string { m.Set("k", kv.Value{Keep: true}); return "" }, "", []string{"adopt "}, ""},
		{"swap", swap("7", "8"), "8", []string{"render", "adopt 8"}, "8"},
		{"swap that loses", swap("6", "8"), "7", []string{"render"}, "7"},
		{"swap that expects nothing", swap("", "8"), "7", []string{"render"}, "7"},
		{"swap that changes nothing", swap("7", "7"), "7", []string{"render", "adopt 7"}, "7"},
		{"append", func(m m) string { m.Append("k", value("8")); return "" }, "", []string{"render", "adopt 78"}, "78"},
		{"add", func(m m) string { n, err := m.Add("k", 5); return fmt.Sprint(n, err) }, "12 <nil>", []string{"render", "adopt 12"}, "12"},
		{"barrier", func(m m) string { ok, err := m.Barrier(&newTold().Waiter, "k", 8); return fmt.Sprint(ok, err) }, "true <nil>",
			[]string{"render", "adopt 8"}, "8"},
		{"delete", func(m m) string { return fmt.Sprint(m.Delete("k")) }, "true", []string{"adopt nil"}, ""},
		{"wait", func(m m) string { return fmt.Sprint(m.Wait(&newTold().Waiter, "k")) }, "true", nil, "7"},
		{"push", func(m m) string { m.Push("k", value("x")); return "" }, "", nil, "7"},
		{"clear", func(m m) string { m.Clear(); return fmt.Sprint(m.Keys()) }, "[k]", nil, "7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := kv.New()
			m.Lock()
			defer m.Unlock()
			m.Set("k", value("old"))
			mr := &mirror{}
			if got := m.Mirror("k", mr.Render, mr.Adopt); string(got) != "old" {
				t.Errorf("the key had %q", got)
			}
			mr.put("7")
			if got := tt.do(m); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if diff := cmp.Diff(tt.calls, mr.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if got := get(m); got != tt.after+" true" {
				t.Errorf("afterwards it is %q, want %q", got, tt.after)
			}
			if !m.Unmirror("k") || m.Unmirror("k") || m.Has("k") && tt.name != "push" {
				t.Error("the key is still there")
			}
		})
	}
}

// TestMirrorNew has no key before the mirror comes: who waits for it is woken.
func TestMirrorNew(t *testing.T) {
	m := kv.New()
	m.Lock()
	defer m.Unlock()
	w := newTold()
	m.Wait(&w.Waiter, "k")
	mr := &mirror{value: "a"} // not changed, so nothing
	if got := m.Mirror("k", mr.Render, mr.Adopt); got != nil {
		t.Errorf("there was %q", got)
	}
	if w.fired != 1 {
		t.Errorf("the waiter was told %d times", w.fired)
	}
	if got, ok := m.Get("k"); len(got) > 0 || !ok {
		t.Errorf("got %q, %v", got, ok)
	}
	m.Set("e", kv.Value{})
	if got := m.Mirror("e", mr.Render, mr.Adopt); got == nil {
		t.Error("an empty value counts as none")
	}
	// Another takes its place.
	mr.put("b")
	m.Get("k")
	other := &mirror{}
	if got := m.Mirror("k", other.Render, other.Adopt); string(got) != "b" {
		t.Errorf("the first mirror had %q", got)
	}
	m.Add("absent", 1)
	if len(other.calls) != 0 {
		t.Errorf("calls for another key: %q", other.calls)
	}
	if _, err := m.Add("k", 1); err != kv.ErrNotNumber || !slices.Equal(other.calls, []string{"render"}) {
		t.Errorf("add to a word: %v, %q", err, other.calls)
	}
}

// TestMirrorWakes has writers wake who waits for changes.
func TestMirrorWakes(t *testing.T) {
	m := kv.New()
	m.Lock()
	defer m.Unlock()
	mr := &mirror{}
	m.Mirror("k", mr.Render, mr.Adopt)
	mr.put("a")
	for i, write := range []func(){
		func() { m.Set("k", value("b")) },
		func() { m.CompareAndSet("k", []byte("b"), value("c")) },
		func() { m.Append("k", value("d")) },
	} {
		w := newTold()
		m.OnChange(&w.Waiter, "k")
		if write(); w.fired != 1 {
			t.Errorf("write %d told the waiter %d times", i, w.fired)
		}
	}
	w := newTold()
	m.OnChange(&w.Waiter, "k")
	m.CompareAndSet("k", []byte("cd"), value("cd"))
	if w.fired != 0 {
		t.Error("a swap that changes nothing woke a waiter")
	}
}

// A keeper is a mirror that holds on to all it is given, appends to what it has, and
// now and then does not take what others write.
type keeper struct {
	random *rand.Rand
	value  []byte
	dirty  bool
	held   []held
}

type held struct {
	bytes []byte
	text  string
}

func (k *keeper) hold(b []byte) { k.held = append(k.held, held{b, string(b)}) }

func (k *keeper) put(value []byte) { k.value, k.dirty = value, true }

func (k *keeper) Render() ([]byte, bool) {
	dirty := k.dirty
	k.dirty = false
	return k.value, dirty
}

func (k *keeper) Adopt(value []byte) {
	k.hold(value)
	if k.random.IntN(4) == 0 {
		k.dirty = true
		return
	}
	k.value, k.dirty = value, false
}

// TestMirrorRandom checks every operation against what the mirror has, and that
// no value changes that somebody holds.
func TestMirrorRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	m := kv.New()
	k := &keeper{random: random}
	m.Mirror("k", k.Render, k.Adopt)
	for i := range 20_000 {
		before := string(k.value)
		text := fmt.Sprint(random.IntN(100))
		v := kv.Value{Bytes: []byte(text), Keep: random.IntN(2) == 0}
		wrote := func(want string) { // the keeper was given it last
			if got := k.held[len(k.held)-1].text; got != want {
				t.Fatalf("step %d: the mirror was given %q, want %q", i, got, want)
			}
		}
		m.Lock()
		switch random.IntN(8) {
		case 0:
			m.Set("k", v)
			wrote(text)
		case 1:
			expected, want := text, before
			if random.IntN(2) == 0 {
				expected = before
			}
			won := expected == before
			if won {
				want = text
			}
			if got := m.CompareAndSet("k", []byte(expected), v); string(got) != want {
				t.Fatalf("step %d: swap answered %q, want %q", i, got, want)
			} else {
				k.hold(got)
			}
		case 2:
			if len(before) < 12 {
				m.Append("k", v)
				wrote(before + text)
			}
		case 3:
			old, ok := kv.ParseInt([]byte(before))
			sum, err := m.Add("k", 3)
			if ok != (err == nil) || ok && sum != old+3 {
				t.Fatalf("step %d: %q + 3 = %d, %v", i, before, sum, err)
			}
			if ok {
				wrote(fmt.Sprint(sum))
			}
		case 4:
			m.Delete("k")
			wrote("")
		case 5:
			k.put([]byte(text))
		case 6:
			if len(before) < 12 {
				k.put(append(k.value, text...))
			}
		case 7:
			got, _ := m.Share("k")
			k.hold(got)
			m.Clear()
		}
		if got, ok := m.Get("k"); string(got) != string(k.value) || !ok {
			t.Fatalf("step %d: %q, want %q", i, got, k.value)
		}
		m.Unlock()
	}
	for _, h := range k.held {
		if string(h.bytes) != h.text {
			t.Fatalf("%q became %q", h.text, h.bytes)
		}
	}
}

// BenchmarkSet is the map's share of a SET and a GET, without mirrors and with
// one at another key.
func BenchmarkSet(b *testing.B) {
	for _, mirrored := range []bool{false, true} {
		b.Run(fmt.Sprintf("mirror=%v", mirrored), func(b *testing.B) {
			m := kv.New()
			if mirrored {
				mr := &mirror{}
				m.Mirror("other", mr.Render, mr.Adopt)
			}
			v := kv.Value{Bytes: make([]byte, 100)}
			for b.Loop() {
				m.Lock()
				m.Set("key", v)
				m.Get("key")
				m.Unlock()
			}
		})
	}
}
