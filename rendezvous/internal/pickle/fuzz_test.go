package pickle_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

func FuzzDecode(f *testing.F) {
	v := load(f)
	for _, s := range v.States {
		data, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range v.MustReject {
		data, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, a := range append(unusual(), memos()...) {
		f.Add([]byte(a.data))
	}
	f.Add(pickle.Encode(many(3)))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		s, err := pickle.Decode(data)
		if !bytes.Equal(before, data) {
			t.Error("Decode has changed its input")
		}
		if old, ok := errors.AsType[*pickle.OldStateError](err); ok {
			s = old.State
		} else if err != nil {
			e, ok := errors.AsType[*pickle.Error](err)
			if !ok || s != nil || e.Offset < 0 || e.Offset > len(data) || e.Reason == "" {
				t.Errorf("state %v, error %#v", s, err)
			}
			return
		}
		identity(t, s)
	})
}

// identity wants a state to be the same after Encode and Decode, in both styles.
func identity(t *testing.T, s *state.State) {
	t.Helper()
	for name, data := range map[string][]byte{"ours": pickle.Encode(s), "Python's": asPython(s)} {
		again, err := pickle.Decode(data)
		if err != nil {
			t.Fatalf("%s, of %+v: %v", name, s, err)
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Errorf("%s (-first +again)\n%s", name, d)
		}
	}
}

// FuzzIdentity makes states of random numbers, so that the seeds alone try many.
func FuzzIdentity(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed, "host", int64(seed)<<20)
	}
	f.Add(uint64(1), "", int64(math.MaxInt64))
	f.Add(uint64(2), strings.Repeat("é", 512), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, seed uint64, addr string, micros int64) {
		if !utf8.ValidString(addr) || len(addr) > pickle.MaxAddr {
			t.Skip()
		}
		s := random(rand.New(rand.NewPCG(seed, 1)), addr, micros)
		identity(t, s)
		if !bytes.Equal(pickle.Encode(s), pickle.Encode(s.Clone())) {
			t.Error("equal states give different bytes")
		}
		text := pickle.EncodeText(s)
		if again, err := pickle.DecodeText(text); err != nil || !cmp.Equal(s, again) {
			t.Errorf("as text: %v\n%s", err, cmp.Diff(s, again))
		}
	})
}

// random returns a state with up to 30 entries in each collection.
func random(r *rand.Rand, addr string, micros int64) *state.State {
	number := func() int { return int(int32(r.Uint32()) >> r.IntN(32)) }
	instant := func() time.Time {
		// From the year 1, without its first microsecond, to 9999.
		const first, last = -62135596799999999, 253402300799999999
		const span = last - first + 1
		return time.UnixMicro(first + int64((uint64(micros)%span+r.Uint64N(span))%span)).UTC()
	}
	node := func() state.Node {
		n := state.Node{Addr: addr, PID: number(), LocalID: number()}
		if extra := r.IntN(4); extra > 0 && len(addr) < pickle.MaxAddr-3 {
			n.Addr += strings.Repeat("x", extra)
		}
		return n
	}
	s := state.NewState()
	s.Round, s.Complete, s.Closed = number(), r.IntN(2) == 0, r.IntN(2) == 0
	if r.IntN(2) == 0 {
		s.Deadline = instant()
	}
	for range r.IntN(30) {
		s.Participants[node()] = number()
	}
	for n := range s.Participants {
		s.LastHeartbeats[n] = instant()
	}
	for range r.IntN(30) {
		n := node()
		s.WaitList.Add(n)
		s.LastHeartbeats[n] = instant()
	}
	for range r.IntN(30) {
		s.RedundancyList.Add(node())
	}
	return s
}
