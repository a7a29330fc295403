package flight_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/job/flight"
)

// again reads what Encode writes of dumps.
func again(t *testing.T, dumps []*flight.Dump) []*flight.Dump {
	t.Helper()
	var r flight.Reader
	var all []*flight.Dump
	for _, d := range dumps {
		short, err := r.Decode(d.Encode())
		if err != nil {
			t.Fatal(err)
		}
		short.Rank = d.Rank
		all = append(all, short)
	}
	return all
}

// What another host gets of a dump tells the same: who is missing, different or in another order.
func TestEncode(t *testing.T) {
	for _, tt := range cases {
		dumps := parse(t, tt.job, asJSON)
		full, short := flight.Compare(dumps, flight.Config{World: tt.world}), flight.Compare(again(t, dumps), flight.Config{World: tt.world})
		if fmt.Sprint(full.Kind, full.Ranks, full.Text) != fmt.Sprint(short.Kind, short.Ranks, short.Text) {
			t.Errorf("%s: %s %v\n%s\nin short %s %v\n%s", tt.name, full.Kind, full.Ranks, full.Text, short.Kind, short.Ranks, short.Text)
		}
	}
	for _, name := range []string{"missing", "missing_loop", "different", "size", "swapped", "gpu_busy", "good", "gloo_missing", "gloo_async",
		"gloo_anew", "gloo_different", "gloo_swapped", "gloo_good"} {
		ending := ".pickle"
		if strings.HasPrefix(name, "gloo") {
			ending = ".json"
		}
		dumps := recorded(t, name, ending)
		full, short := flight.Compare(dumps, flight.Config{World: 4}), flight.Compare(again(t, dumps), flight.Config{World: 4})
		for _, d := range dumps {
			if n := len(d.Encode()); n > 32<<10 {
				t.Errorf("%s: %d bytes of rank %d", name, n, d.Rank)
			}
		}
		if full.Text != short.Text || fmt.Sprint(full.Kind, full.Ranks) != fmt.Sprint(short.Kind, short.Ranks) {
			t.Errorf("%s: %s\nin short %s", name, full.Text, short.Text)
		}
	}
}

// Progress changes with each collective that begins or ends, and says whether one is under way.
func TestProgress(t *testing.T) {
	status := func(groups string) [][]byte {
		return [][]byte{[]byte(`{"pg_status":{}}`), []byte(`{"version":"2.10","pg_status":{` + groups + `}}`)}
	}
	group := func(id, enqueued, completed int) string {
		return fmt.Sprintf(`"%d":{"last_completed_collective":"%d","last_enqueued_collective":"%d","last_started_collective":"-1"}`, id, completed, enqueued)
	}
	seen := map[string]bool{}
	for _, tt := range []struct {
		groups string
		waits  bool
	}{
		{group(0, 3, 3), false}, {group(0, 4, 3), true}, {group(0, 4, 4), false},
		{group(0, 4, 4) + "," + group(1, 1, -1), true}, {group(0, 4, 4) + "," + group(1, 1, 1), false},
	} {
		at, waits := flight.Progress(status(tt.groups))
		if seen[at] || at == "" || waits != tt.waits {
			t.Errorf("%s: %q, waits %t", tt.groups, at, waits)
		}
		seen[at] = true
	}
	for _, waits := range []bool{true, false} { // a pickle has numbers
		done := map[bool]int{true: 3, false: 4}[waits]
		pickle := asPickle(t, map[string]any{"pg_status": map[string]any{"0": map[string]any{"last_completed_collective": done,
			"last_enqueued_collective": 4}}})
		if at, got := flight.Progress([][]byte{pickle}); got != waits || at != fmt.Sprintf("0:4/%d ", done) {
			t.Errorf("pickle: %q, waits %t", at, got)
		}
	}
	for _, bad := range []string{``, `[]`, `{`, `{"pg_status":7}`, `{"pg_status":{"0":[]}}`} {
		if at, waits := flight.Progress([][]byte{[]byte(bad)}); waits {
			t.Errorf("%s: %q, waits", bad, at)
		}
	}
}

// A rank that cannot say where it is, and makes others wait, is named; not where nobody waits.
func TestSilent(t *testing.T) {
	cfg := flight.Config{World: 4, Silent: func(rank int) string { return map[int]string{3: "is stopped"}[rank] }}
	for _, tt := range []struct{ job, want string }{
		{"0: dp 1 all_reduce 16 waits\n1: dp 1 all_reduce 16 waits\n2: dp 1 all_reduce 16 waits", "3 ranks wait in all_reduce 1 of group dp (64 B float32); rank 3 is stopped"},
		{"0: nameless 1 all_reduce 16 waits\n1: nameless 1 all_reduce 16\n2:", "rank 0 waits in all_reduce 1 of group nameless (64 B float32); rank 3 is stopped"},
		{"0: dp 1 all_reduce 16\n1: dp 1 all_reduce 16", "no operation that is recorded waits for a rank" + quiet},
		{"0: dp 1 all_reduce 16 waits\n1: dp 1 barrier waits\n2: dp 1 all_reduce 16 waits", "rank 1 is in barrier 1 of group dp where ranks 0, 2 are in all_reduce"},
	} {
		if v := flight.Compare(parse(t, tt.job, asJSON), cfg); v.Text != tt.want {
			t.Errorf("%s\nwant %s", v.Text, tt.want)
		}
	}
}
