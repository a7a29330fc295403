package flight_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/job/flight"
)

// All but one have come, in several ways, and what else can be wrong. Each job is read from both formats.
func TestCompare(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			cfg := flight.Config{World: tt.world}
			if tt.places {
				cfg.Host = func(rank int) string { return fmt.Sprint("host", rank/2) }
				cfg.Place = func(rank int) string { return map[int]string{3: "train.py:88 in load_batch"}[rank] }
			}
			v := flight.Compare(parse(t, tt.job, asJSON), cfg)
			if p := flight.Compare(parse(t, tt.job, asPickle), cfg); fmt.Sprint(v) != fmt.Sprint(p) {
				t.Errorf("of JSON\n%v\nof pickles\n%v", v, p)
			}
			check(t, v, tt.kind, tt.ranks, tt.text)
		})
	}
}

func check(t *testing.T, v flight.Verdict, kind flight.Kind, ranks []int, line string) {
	t.Helper()
	if v.Kind != kind || !slices.Equal(v.Ranks, ranks) || v.Text != line {
		t.Errorf("%s, ranks %v:\n%s\nwant %s, ranks %v:\n%s", v.Kind, v.Ranks, v.Text, kind, ranks, line)
	}
}

// Nothing is claimed of operations that had just begun when the dumps were taken.
func TestPatience(t *testing.T) {
	const job = `
		0: dp 1 all_reduce 1024 waits @100
		1: dp 1 all_reduce 1024 waits @100
		2: dp 1 all_reduce 1024 waits @100
		3: dp 0 all_reduce 1024 @10`
	for _, tt := range []struct {
		after, patience time.Duration
		want            flight.Kind
	}{
		{900 * time.Millisecond, 0, flight.None},
		{1100 * time.Millisecond, 0, flight.Missing},
		{1100 * time.Millisecond, 2 * time.Second, flight.None},
		{2100 * time.Millisecond, 2 * time.Second, flight.Missing},
	} {
		dumps := parse(t, job, asJSON)
		for i, d := range dumps {
			d.Ahead = time.Duration(i) * time.Hour
			for j := range d.Entries {
				d.Entries[j].Created += int64(d.Ahead)
				d.Entries[j].Completed += int64(d.Ahead)
			}
			d.Taken = time.UnixMilli(epoch + 100).Add(tt.after + d.Ahead)
		}
		if v := flight.Compare(dumps, flight.Config{Patience: tt.patience}); v.Kind != tt.want {
			t.Errorf("%v after the last has come, patience %v: %s, want %s", tt.after, tt.patience, v.Kind, tt.want)
		}
		if v := flight.Compare(again(t, dumps), flight.Config{Patience: tt.patience}); v.Kind != tt.want {
			t.Errorf("%v after the last has come, patience %v, from another host: %s, want %s", tt.after, tt.patience, v.Kind, tt.want)
		}
	}
}

// Whatever ranks may have recorded, the verdict names only ranks that the job has, and says the same
// again. Each four bytes are an entry: its rank, group and operation, its number, and its state.
func FuzzCompare(f *testing.F) {
	groups := []*flight.Group{
		{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}, {Name: "1", Desc: "dp"},
		{Name: "2", Desc: "tp", Ranks: []int{0, 1}}, {Name: "3", Desc: "tp", Ranks: []int{3, 2}},
	}
	ops := []*flight.Op{
		{Name: "all_reduce", From: -1, To: -1, In: "4 B float32", Out: "4 B float32"}, {Name: "barrier", From: -1, To: -1},
		{Name: "send", To: 1, In: "4 B float32"}, {Name: "recv", To: 1, Out: "4 B float32"}, {Name: "recv", From: -1, To: 1},
		{Name: "coalesced", From: -1, To: -1}, {Name: "send", From: 1, To: 7},
	}
	f.Add([]byte("\x00\x00\x01\x02\x01\x00\x01\x00\x02\x00\x01\x02"), 0)
	f.Add([]byte("\x00\x12\x01\x04\x01\x32\x01\x06\x01\x02\x01\x00"), 4)
	f.Fuzz(func(t *testing.T, data []byte, world int) {
		dumps := make([]*flight.Dump, 4)
		for i := range dumps {
			dumps[i] = &flight.Dump{Rank: i, Version: "2.10"}
		}
		for i := 0; i+3 < len(data); i += 4 {
			rank, what, seq, state := data[i]%4, data[i+1], data[i+2], data[i+3]
			dumps[rank].Lost = dumps[rank].Lost || rank > 3
			dumps[rank].Entries = append(dumps[rank].Entries, flight.Entry{Group: groups[what%4], Op: ops[int(what/16)%len(ops)],
				Seq: int64(seq % 8), State: flight.State(state % 3), P2P: state&4 != 0, Created: int64(seq) * 1e9, Completed: int64(state) * 1e9})
		}
		cfg := flight.Config{World: max(0, world%6)}
		v := flight.Compare(dumps, cfg)
		if v.Kind == "" || v.Text == "" || len(v.Ranks) > 0 && (v.Ranks[0] < 0 || v.Ranks[len(v.Ranks)-1] > 3) {
			t.Errorf("%+v", v)
		}
		if again := flight.Compare(dumps, cfg); fmt.Sprint(again) != fmt.Sprint(v) {
			t.Errorf("%+v\nand then %+v", v, again)
		}
	})
}
