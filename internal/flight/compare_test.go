package flight_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/internal/flight"
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
			check(t, v, tt.kind, tt.ranks, tt.text, tt.notes)
		})
	}
}

func check(t *testing.T, v flight.Verdict, kind flight.Kind, ranks []int, line, notes string) {
	t.Helper()
	if v.Kind != kind || !slices.Equal(v.Ranks, ranks) || v.Text != line {
		t.Errorf("%s, ranks %v:\n%s\nwant %s, ranks %v:\n%s", v.Kind, v.Ranks, v.Text, kind, ranks, line)
	}
	if got := strings.Join(v.Notes, "\n"); got != notes {
		t.Errorf("notes:\n%s\nwant:\n%s", got, notes)
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
	}
}
