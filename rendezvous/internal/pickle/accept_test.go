package pickle_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

type accepted struct {
	name, data string
	want       *state.State
}

// unusual are states that Python loads, which TestPeer checks.
func unusual() []accepted {
	h := state.Node{Addr: "h", PID: 7}
	at := time.Date(2026, 11, 21, 4, 13, 7, 974432000, time.UTC)
	made := func(change func(*state.State)) *state.State {
		s := state.NewState()
		change(s)
		return s
	}
	nothing := func(*state.State) {}
	with := func(more ...string) string { return fields{}.and(more...).pickle(p4) }
	return []accepted{
		{"plain", with(), made(nothing)},
		{"extra attribute", with("extra", "]("+oneNode+newTime+"}K\x01\x8c\x01xs\x8c\x03abce"), made(nothing)},
		{"extra attribute of a node", with("wait_list", "\x8f("+strings.Replace(oneNode, "ub", "\x8c\x04zone\x8c\x01aub", 1)+"\x90"),
			made(func(s *state.State) { s.WaitList.Add(h) })},
		{"bytes after the end", with() + "i?", made(nothing)},
		{"later attribute counts", p4 + newState + "}\x94(" + strings.TrimSuffix(strings.TrimPrefix(with("round", "K\x01"), p4+newState+"}("), "ub.") + "\x8c\x05roundK\x02ub.",
			made(func(s *state.State) { s.Round = 2 })},
		{"later item counts", with("participants", "}("+oneNode+"K\x01"+oneNode+"K\x02u"),
			made(func(s *state.State) { s.Participants[h] = 2 })},
		{"items one by one", with("participants", "}"+oneNode+"K\x01s"+strings.Replace(oneNode, "\x01h", "\x01i", 1)+"K\x02s"),
			made(func(s *state.State) {
				s.Participants[h] = 1
				s.Participants[state.Node{Addr: "i", PID: 7}] = 2
			})},
		{"negative numbers", with("round", "J\xff\xff\xff\xff", "participants", "}"+oneNode+"J\x00\x00\x00\x80s"),
			made(func(s *state.State) { s.Round, s.Participants[h] = -1, -1<<31 })},
		{"fold", with("deadline", strings.Replace(newTime, "\x07\xea\x0b", "\x07\xea\x8b", 1)),
			made(func(s *state.State) { s.Deadline = at })},
		{"deadline at the beginning of time", with("deadline", strings.Replace(newTime, "\x07\xea\x0b\x15\x04\x0d\x07\x0e\xde\x60", "\x00\x01\x01\x01\x00\x00\x00\x00\x00\x00", 1)),
			made(func(s *state.State) { s.Deadline = time.Time{}.Add(time.Microsecond) })},
		{"29 February", with("deadline", strings.Replace(newTime, "\x07\xea\x0b\x15\x04\x0d\x07\x0e\xde\x60", "\x07\xe8\x02\x1d\x17\x3b\x3b\x0f\x42\x3f", 1)),
			made(func(s *state.State) { s.Deadline = time.Date(2024, 2, 29, 23, 59, 59, 999999000, time.UTC) })},
		{"set of a list", fields{}.and("wait_list", "c__builtin__\nset\n]("+oneNode+"e\x85R").pickle(p2),
			made(func(s *state.State) { s.WaitList.Add(h) })},
		{"set of a list that grows later", fields{}.and("wait_list", "cbuiltins\nset\n]q\x00\x85R", "extra", "h\x00"+oneNode+"a").pickle(p2), made(nothing)},
		{"time of protocol 2", fields{}.and("deadline", strings.Replace(newTime, "C\x0a\x07\xea\x0b\x15\x04\x0d\x07\x0e\xde\x60", "c_codecs\nencode\nX\x0c\x00\x00\x00\x07\xc3\xaa\x0b\x15\x04\x0d\x07\x0e\xc3\x9e\x60X\x06\x00\x00\x00latin1\x86R", 1)).pickle(p2),
			made(func(s *state.State) { s.Deadline = at })},
	}
}

func TestAccept(t *testing.T) {
	for _, tt := range unusual() {
		t.Run(tt.name, func(t *testing.T) {
			got, err := pickle.Decode([]byte(tt.data))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// TestMemo wants the memo to count as Python's does: MEMOIZE stores at the number
// of indexes that are in use.
// Source: load_memoize in pickle.py.
func TestMemo(t *testing.T) {
	for _, tt := range memos() {
		t.Run(tt.name, func(t *testing.T) {
			got, err := pickle.Decode([]byte(tt.data))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// memos use the memo as no pickler does. Python loads them, which TestPeer checks.
func memos() (states []accepted) {
	for _, tt := range []struct {
		name, before, round string
		want                int
	}{
		{"memoize counts", "K\x05\x94", "h\x00", 5},
		{"memoize after put", "](K\x05q\x00K\x06\x94e", "h\x01", 6},
		{"put again", "](K\x05\x94K\x06q\x00e", "h\x00", 6},
		{"put again counts once", "](K\x05\x94K\x06q\x00K\x07\x94e", "h\x01", 7},
		{"long forms", "K\x09r\x00\x00\x00\x00", "j\x00\x00\x00\x00", 9},
	} {
		want := state.NewState()
		want.Round = tt.want
		states = append(states, accepted{tt.name, fields{}.and("before", tt.before, "round", tt.round).pickle(p4), want})
	}
	return states
}

// TestInputReused wants a state to keep nothing of its input.
func TestInputReused(t *testing.T) {
	want := many(20)
	want.WaitList.Add(state.Node{Addr: strings.Repeat("long", 200), PID: 1})
	for name, encode := range map[string]func(*state.State) []byte{"ours": pickle.Encode, "Python's": asPython} {
		data := encode(want)
		got, err := pickle.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			data[i] = 'x'
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", name, d)
		}
	}
}

// TestBig has states of many frames, SETITEMS and long memo indexes.
func TestBig(t *testing.T) {
	for _, n := range []int{90, 999, 1000, 1001, 5000} {
		want := many(n)
		want.Complete, want.Deadline = false, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		moved := want.Nodes()[:n/3]
		for i, node := range moved {
			delete(want.Participants, node)
			if i%2 == 0 {
				want.WaitList.Add(node)
			} else {
				want.RedundancyList.Add(node)
			}
		}
		for name, data := range map[string][]byte{"ours": pickle.Encode(want), "Python's": asPython(want), "framed": framed(asPython(want))} {
			got, err := pickle.Decode(data)
			if err != nil {
				t.Fatalf("%s, %d nodes: %v", name, n, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s, %d nodes (-want +got)\n%s", name, n, d)
			}
		}
	}
}

// framed puts an empty frame between the last two opcodes, after the pickle's own.
func framed(data []byte) []byte {
	stop := len(data) - 1
	binary.LittleEndian.PutUint64(data[3:], uint64(stop-11))
	return append(data[:stop:stop], "\x95\x01\x00\x00\x00\x00\x00\x00\x00."...)
}
