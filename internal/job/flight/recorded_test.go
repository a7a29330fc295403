package flight_test

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/flight"
)

// recorded reads testdata/NAME.tar.gz: real dumps, each in a file RANK.pickle or RANK.json.
func recorded(t *testing.T, name, ending string) (dumps []*flight.Dump) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var r flight.Reader
	files := tar.NewReader(z)
	for {
		head, err := files.Next()
		if err == io.EOF {
			return dumps
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		rank, ok := strings.CutSuffix(head.Name, ending)
		if !ok {
			continue
		}
		d, err := r.Read(data)
		if err != nil {
			t.Fatalf("%s: %v", head.Name, err)
		}
		if d.Rank, err = strconv.Atoi(rank); err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
}

// The dumps of four NCCL ranks, of PyTorch 2.11, in the groups dp of all, tp of two and two, and the
// default one. Each job says which rank went wrong.
func TestNCCL(t *testing.T) {
	for _, tt := range []struct {
		name  string
		taken string
		kind  flight.Kind
		ranks []int
		want  string
	}{
		{name: "missing", kind: flight.Missing, ranks: []int{3},
			want: "3 ranks wait in all_reduce 11 of group dp (4.0 MiB float32); rank 3 has not come: its last is barrier 10 of the default group (job.py:22 in step)"},
		{name: "missing_loop", kind: flight.Missing, ranks: []int{3},
			want: "3 ranks wait in all_reduce 11 of group dp (4.0 MiB float32); rank 3 has not come: its last is barrier 10 of the default group"},
		{name: "different", kind: flight.Different, ranks: []int{2},
			want: "rank 2 is in all_gather_into_tensor 11 of group dp (job.py:56 in <module>) where ranks 0-1, 3 are in all_reduce"},
		{name: "size", kind: flight.Different, ranks: []int{1},
			want: "rank 1 is in all_reduce 11 of group dp with 64 B float32 (job.py:61 in <module>) where ranks 0, 2-3 have 16 MiB float32"},
		{name: "swapped", kind: flight.Order, ranks: []int{0},
			want: "rank 0 is in all_reduce 11 of group tp of ranks 0-1 (job.py:65 in <module>) where ranks 1-3 are in all_reduce 11 of group dp: they enter these in another order, and each waits for the other"},
		{name: "gpu_busy", kind: flight.Stuck,
			want: "ranks 0-3 are all in all_reduce 11 of group dp (4.0 MiB float32) and it does not end: look at the network and the GPUs"},
		{name: "p2p", kind: flight.None, want: "no operation that is recorded waits for a rank" + quiet},
		{name: "good", kind: flight.None, want: "no operation that is recorded waits for a rank" + quiet},
		{name: "late", taken: "2026-11-28T03:57:52.670Z", kind: flight.None, want: "no operation that is recorded waits for a rank" + quiet},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dumps := recorded(t, tt.name, ".pickle")
			if len(dumps) != 4 {
				t.Fatalf("%d dumps", len(dumps))
			}
			for _, d := range dumps {
				if tt.taken != "" {
					d.Taken, _ = time.Parse(time.RFC3339, tt.taken)
				}
			}
			check(t, flight.Compare(dumps, flight.Config{World: 4}), tt.kind, tt.ranks, tt.want)
		})
	}
}

// The dumps of four gloo ranks of PyTorch 2.15, which do not tell who is in a group nor when an
// operation has ended.
func TestGloo(t *testing.T) {
	for _, tt := range []struct {
		name  string
		kind  flight.Kind
		ranks []int
		want  string
	}{
		{name: "missing", kind: flight.Missing, ranks: []int{3},
			want: "3 ranks wait in all_reduce 11 of group dp (1.0 MiB float32); rank 3 has not come: its last is barrier 10 of the default group"},
		{name: "async", kind: flight.Missing, ranks: []int{3},
			want: "3 ranks wait in all_gather 14 of group dp (64 B float32); rank 3 has not come: its last is all_reduce 13 of group dp"},
		{name: "anew", kind: flight.Missing, ranks: []int{3}, // after destroy_process_group and another init_process_group
			want: "3 ranks wait in all_reduce 4 of group dp (1.0 MiB float32); rank 3 has not come: its last is barrier 3 of the default group"},
		{name: "different", kind: flight.Different, ranks: []int{2},
			want: "rank 2 is in all_gather 11 of group dp where ranks 0-1, 3 are in all_reduce"},
		{name: "swapped", kind: flight.Order, ranks: []int{0},
			want: "rank 0 is in all_reduce 11 of group tp where ranks 1-3 are in all_reduce 11 of group dp: they enter these in another order, and each waits for the other"},
		{name: "p2p", kind: flight.None,
			want: "no operation that is recorded waits for a rank" + quiet},
		{name: "many", kind: flight.None,
			want: "no operation that is recorded waits for a rank" + quiet},
		{name: "good", kind: flight.None,
			want: "no operation that is recorded waits for a rank" + quiet},
		{name: "late", kind: flight.None, want: "no operation that is recorded waits for a rank" + quiet},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dumps := recorded(t, "gloo_"+tt.name, ".json")
			if len(dumps) != 4 {
				t.Fatalf("%d dumps", len(dumps))
			}
			check(t, flight.Compare(dumps, flight.Config{World: 4}), tt.kind, tt.ranks, tt.want)
		})
	}
}

// Both formats of one record say the same. JSON has no stacks.
func TestFormats(t *testing.T) {
	pickles, jsons := recorded(t, "good", ".pickle"), recorded(t, "good", ".json")
	if len(pickles) != 4 || len(pickles[0].Entries) != 180 {
		t.Fatalf("%d dumps", len(pickles))
	}
	for i, d := range pickles {
		for j := range d.Entries {
			a, b := d.Entries[j], jsons[i].Entries[j]
			if a.Place = ""; j >= len(d.Entries)-3 {
				a.Completed = b.Completed // noticed anew by each of two dumps
			}
			if d := cmp.Diff(a, b); d != "" {
				t.Fatalf("rank %d, entry %d (-pickle +JSON)\n%s", i, j, d)
			}
		}
	}
}
