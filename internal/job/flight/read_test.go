package flight_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/flight"
)

func TestRead(t *testing.T) {
	tree := (&fake{groups: four, entries: []entry{
		{group: "1", seq: 4, op: "nccl:_reduce_scatter_base", in: 64, out: 16, dtype: "BFloat16", at: 7, state: "started", frames: []any{
			map[string]any{"name": "step", "filename": `/home/user/my "train".py`, "line": 88},
		}},
		{group: "2", seq: 9, op: "gloo:recv 0<-1", out: 4, at: 8, p2p: true},
	}}).tree()
	dp := &flight.Group{Name: "1", Desc: "dp", Ranks: []int{0, 1, 2, 3}}
	tp := &flight.Group{Name: "2", Desc: "tp", Ranks: []int{0, 1}}
	want := &flight.Dump{Version: "2.10", Library: "nccl", Entries: []flight.Entry{
		{Group: dp, Seq: 4, Created: (epoch + 7) * 1e6, State: flight.Started, Place: `my "train".py:88 in step`,
			Op: &flight.Op{Name: "reduce_scatter_tensor", From: -1, To: -1,
				In: "128 B bfloat16", Out: "32 B bfloat16"}},
		{Group: tp, Seq: 9, Created: (epoch + 8) * 1e6, Completed: (epoch + 9) * 1e6, State: flight.Completed, P2P: true,
			Op: &flight.Op{Name: "recv", From: 1, To: 0, Out: "16 B float32"}},
	}}
	for _, encode := range encoders {
		got, err := new(flight.Reader).Read(encode(t, tree))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
}

var encoders = []func(testing.TB, any) []byte{asJSON, asPickle}

// What Python's own pickler writes is read, too.
func TestPickles(t *testing.T) {
	for _, tt := range []struct{ name, data string }{
		{"protocol 4", "\x80\x04\x95\x14\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x07version\x94\x8c\x032.4\x94\x8c\x07entries\x94]\x94u."},
		{"items one by one", "\x80\x02}q\x00X\x07\x00\x00\x00versionq\x01X\x03\x00\x00\x002.4q\x02s."},
		{"a list that grows", "\x80\x02}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.4X\x01\x00\x00\x00x](NN\x85e(\x89\x88)eu."},
		{"a text of 2 GiB's opcode", "\x80\x04}\x8d\x07\x00\x00\x00\x00\x00\x00\x00version\x8c\x032.4s."},
	} {
		if d, err := new(flight.Reader).Read([]byte(tt.data)); err != nil || d.Version != "2.4" {
			t.Errorf("%s: %+v, %v", tt.name, d, err)
		}
	}
}

func TestRefuse(t *testing.T) {
	for _, tt := range []struct{ name, data, want string }{
		{"nothing", "", "byte 0: the dump is cut off"},
		{"blank", "  \n", "byte 0: the dump is cut off"},
		{"another version", `{"version":"3.1"}`, `version "3.1" of its format is not 2.x, which PyTorch 2.6 to 2.15 write`},
		{"no version", `{"entries":[]}`, `version "" of its format`},
		{"no object", `[1,2]`, `version "" of its format`},
		{"an entry that is none", `{"version":"2.1","entries":[{},3]}`, "entry 1 is not an entry"},
		{"no JSON", `{"version":<2>}`, `byte 11: invalid character '<' looking for beginning of value`},
		{"no value", `{"version"}`, `byte 10: invalid character '}' after object key`},
		{"another bracket", `{"version":[1}`, `byte 13: invalid character '}' after array element`},
		{"more after the end", `{} {}`, `byte 2: there is more after the end`},
		{"deep", strings.Repeat(`{"a":[`, 3<<20), "more than 4194304 values"},
		{"a call", "\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "byte 2: opcode GLOBAL (0x63) does more than make data: the pickle is refused"},
		{"a call of protocol 4", "\x80\x04\x8c\x02os\x8c\x06system\x93.", "byte 14: opcode STACK_GLOBAL (0x93) does more than make data"},
		{"a persistent ID", "\x80\x02NQ.", "byte 3: opcode BINPERSID (0x51) does more"},
		{"text opcodes", "\x80\x02I1\n.", "byte 2: opcode ? (0x49) does more than make data"},
		{"a later protocol", "\x80\x06N.", "byte 0: protocol 6, which is not 2 to 5"},
		{"an empty stack", "\x80\x02.", "byte 2: opcode ? (0x2e)"},
		{"nothing to append to", "\x80\x02K\x01K\x02a.", "byte 6: too little on the stack, or something else"},
		{"a key without a value", "\x80\x02}(K\x01u.", "byte 6: too little on the stack, or something else"},
		{"no mark", "\x80\x02]K\x01e.", "byte 5: no mark"},
		{"below the mark", "\x80\x02K\x01(\x85.", "byte 5: too little on the stack"},
		{"an unknown memo", "\x80\x02h\x05.", "byte 2: index 5 of the memo, which has 0"},
		{"a far memo", "\x80\x02Nr\xff\xff\xff\xff.", "byte 3: index 4294967295 for a memo of 0"},
		{"a long integer", "\x80\x02\x8a\x09.........", "byte 2: an integer of 9 bytes"},
		{"a text that is cut off", "\x80\x02X\xff\xff\xff\x7fab", "byte 2: the dump is cut off"},
		{"a text of 2^63", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffab", "byte 2: the dump is cut off"},
		{"many values", "\x80\x02]" + strings.Repeat("N", 5<<20), "more than 4194304 values"},
		{"many marks", "\x80\x02]" + strings.Repeat("(", 5<<20), "more than 4194304 values"},
		{"many values in JSON", "[" + strings.Repeat("1,", 5<<20), "more than 4194304 values"},
		{"many kilobytes", strings.Repeat(" ", flight.MaxSize+1), "67108865 bytes, more than 67108864"},
		{"more entries than a ring has", "\x80\x02}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.4X\x07\x00\x00\x00entries](}q\x00" +
			strings.Repeat("h\x00", 1<<18) + "eu.", "262145 entries, more than 131072"},
		{"one entry again and again", "\x80\x02}(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.4X\x07\x00\x00\x00entries](}q\x00(" +
			strings.Repeat("NN", 1000) + "u" + strings.Repeat("h\x00", 1<<16) + "eu.", "more than 16777216 values to look at"},
	} {
		if d, err := new(flight.Reader).Read([]byte(tt.data)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v, want %s", tt.name, d, err, tt.want)
		}
	}
}

// A dump that is cut off anywhere is refused.
func TestCut(t *testing.T) {
	tree := (&fake{groups: four, entries: []entry{{group: "1", op: "nccl:all_reduce", in: 4}}}).tree()
	for _, encode := range encoders {
		data := encode(t, tree)
		var r flight.Reader
		for n := range data {
			if d, err := r.Read(data[:n]); err == nil || !strings.Contains(err.Error(), "cut off") {
				t.Fatalf("%d of %d bytes: %+v, %v", n, len(data), d, err)
			}
		}
	}
}

// A Reader keeps nothing of what it has read.
func TestReuse(t *testing.T) {
	tree := (&fake{groups: four, entries: []entry{{group: "1", op: "nccl:all_reduce", in: 4, state: "scheduled"}}}).tree()
	for _, encode := range encoders {
		var r flight.Reader
		data := encode(t, tree)
		first, err := r.Read(data)
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprintf("%+v %+v %+v", first.Entries, *first.Entries[0].Op, *first.Entries[0].Group)
		copy(data, bytes.Repeat([]byte("x"), len(data)))
		if _, err := r.Read(encode(t, (&fake{groups: four}).tree())); err != nil {
			t.Fatal(err)
		}
		if after := fmt.Sprintf("%+v %+v %+v", first.Entries, *first.Entries[0].Op, *first.Entries[0].Group); before != after {
			t.Errorf("was %s\nis  %s", before, after)
		}
	}
}

func FuzzRead(f *testing.F) {
	tree := (&fake{groups: four, entries: []entry{
		{group: "1", op: "nccl:all_reduce", in: 4, state: "scheduled"},
		{group: "2", op: "gloo:recv 0<-1", out: 4, at: 8, p2p: true},
		{group: "3", op: "nccl:coalesced", p2p: true},
	}}).tree()
	f.Add(asJSON(f, tree), asPickle(f, tree))
	f.Add([]byte(`{"Version":"2.10\u001b","Groups":[{"Name":"1","Ranks":"[0, 1]","Entries":[{"Op":{"Name":"recv\n","From":-7,"To":9,"In":"\u001b"},"P2P":true}]}]}`),
		[]byte(`{"Groups":[{"Name":"1","Entries":[{"Op":{"Name":"send","To":1},"Seq":-1,"State":77,"P2P":true},{"Op":null}]}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var r flight.Reader
		var dumps []*flight.Dump
		for i, data := range [][]byte{a, b, a, b} {
			for _, read := range []func([]byte) (*flight.Dump, error){r.Read, r.Decode} {
				if d, err := read(data); err == nil {
					d.Rank = i
					dumps = append(dumps, d)
					break
				}
			}
		}
		v := flight.Compare(dumps, flight.Config{})
		if v.Kind == "" || v.Text == "" || strings.ContainsAny(v.Text, "\n\x1b") {
			t.Errorf("%+v", v)
		}
	})
}
