package slow_test

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/job/flight"
	"github.com/muster-run/muster/internal/job/slow"
)

// What recorded jobs tell: of each group from which number on how many collectives, the period, and for how long the
// rank had been in its first collective when its first step ended.
func TestRead(t *testing.T) {
	for name, want := range map[string]string{
		"gloo_late/1.json": "gloo 0 (default_pg) 1+50/1, gloo 1 (dp) 1+50/1, gloo 2 (tp) 1+50/1; 9 ms",
		"gloo_late/3.json": "gloo 0 (default_pg) 1+50/1, gloo 1 (dp) 1+50/1, gloo 3 (tp) 1+50/1; 9 ms",
		"gloo_many/2.json": "gloo 0 (default_pg) 1+24/1, gloo 1 (dp) 1+10/1, gloo 3 (tp) 1+10/1; 57 ms",
		"late/0.pickle":    "nccl 0 (default_pg) 1+37/1, nccl 1 (dp) 1+37/1, nccl 2 (tp) 1+37/1; 1227 ms",
		"p2p/2.pickle":     "nccl 0 (default_pg) 1+10/1, nccl 1 (dp) 1+10/1, nccl 3 (tp) 1+11/1; 1006 ms",
	} {
		c := slow.Read([]*flight.Dump{{}, member(t, name)}, 1)
		var groups []string
		for _, a := range c.Arrivals {
			groups = append(groups, fmt.Sprintf("%s (%s) %d+%d/%d", a.Group, a.Title, a.First, len(a.At), a.Period))
		}
		slices.Sort(groups)
		got := fmt.Sprintf("%s; %d ms", strings.Join(groups, ", "), (c.Stepping-c.Entered)/1e6)
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if c := slow.Read(nil, 0); c.Arrivals != nil || c.Entered != 0 || c.Stepping != 0 {
		t.Errorf("nothing: %+v", c)
	}
}

// Steps may begin with an operation that does not bring ranks together, as those of DistributedDataParallel do where a
// model has buffers. The last step that has ended is that whose operations all have.
func TestReadSteps(t *testing.T) {
	group, side := &flight.Group{Name: "0"}, &flight.Group{Name: "1"}
	shapes, buffers, grads := &flight.Op{Name: "all_gather"}, &flight.Op{Name: "broadcast"}, &flight.Op{Name: "all_reduce"}
	record := func(g *flight.Group, began int64, ended int, ops ...*flight.Op) (all []flight.Entry) {
		for i, op := range ops {
			e := flight.Entry{Group: g, Op: op, Seq: int64(i), Created: began + int64(i), State: flight.Scheduled}
			if i < ended {
				e.State = flight.Completed
			}
			all = append(all, e)
		}
		return all
	}
	ddp := []*flight.Op{shapes, shapes, buffers, grads, buffers, grads, buffers, grads, buffers, grads}
	for _, tt := range []struct {
		name              string
		entries           []flight.Entry
		stepping, stepped int64
	}{
		{"all have ended", record(group, 100, 10, ddp...), 104, 109},
		{"it waits in the last", record(group, 100, 9, ddp...), 104, 107},
		{"it waits in the first of a step", record(group, 100, 8, ddp[:9]...), 104, 107},
		{"it has begun a step", record(group, 100, 9, ddp[:9]...), 104, 107},
		{"no step is known to have ended", record(group, 100, 3, ddp...), 104, 0},
		{"no steps", record(group, 100, 6, ddp[:6]...), 0, 0},
		{"of two groups, the last step in any", slices.Concat(record(group, 100, 10, ddp...), record(side, 200, 3, grads, grads, grads)), 104, 202},
	} {
		if c := slow.Read([]*flight.Dump{{Entries: tt.entries}}, 0); c.Stepping != tt.stepping || c.Stepped != tt.stepped {
			t.Errorf("%s: steps since %d, and the last had ended at %d; want %d and %d", tt.name, c.Stepping, c.Stepped, tt.stepping, tt.stepped)
		}
	}
}

// In these jobs, of gloo on CPUs and of NCCL on a GPU that the ranks share, rank 2 sleeps before each step.
func TestReadLate(t *testing.T) {
	for name, want := range map[string]int{"gloo_late/%d.json": 43, "late/%d.pickle": 27} {
		if got := lastInDP(t, name)[2]; got != want {
			t.Errorf("%s: rank 2 is the last one %d times", name, got)
		}
	}
}

// lastInDP returns how often each rank is the last one in the group dp.
func lastInDP(t *testing.T, name string) map[int]int {
	counts := map[int]int{}
	ranks := make([][]int64, 4)
	for rank := range ranks {
		for _, a := range slow.Read([]*flight.Dump{member(t, fmt.Sprintf(name, rank))}, rank).Arrivals {
			if a.Title == "dp" {
				ranks[rank] = a.At
			}
		}
	}
	for i := range ranks[0] {
		last := 0
		for rank := range ranks {
			if ranks[rank][i] > ranks[last][i] {
				last = rank
			}
		}
		counts[last]++
	}
	return counts
}

// member is the dump in a file of one of the recordings of package flight.
func member(t *testing.T, path string) *flight.Dump {
	t.Helper()
	name, file, _ := strings.Cut(path, "/")
	f, err := os.Open(filepath.Join("..", "flight", "testdata", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(z); ; {
		head, err := files.Next()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if head.Name == file {
			data, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			d, err := new(flight.Reader).Read(data)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
}
