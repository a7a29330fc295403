package pickle_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
)

// TestHostile wants inputs of the largest size that are made to cost much not to.
// Without a bound most of them would take gigabytes or minutes.
func TestHostile(t *testing.T) {
	fill := func(head, unit, tail string) []byte {
		n := (pickle.MaxSize - len(head) - len(tail)) / len(unit)
		return append(append(append(make([]byte, 0, pickle.MaxSize), head...), bytes.Repeat([]byte(unit), n)...), tail...)
	}
	addr := strings.Repeat("a", 1<<20)
	classes := "c" + module + "\n_NodeDesc\n\x94"
	nodeOf := func(addr string) string { return "h\x00)\x81}(" + addr + "\x8c\x03pidK\x00\x8c\x08local_idK\x00ub" }
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"values", fill(p4, "N", "."), "it takes more work than a rendezvous state can need"},
		{"marks", fill(p4, "(", "."), "it takes more work than a rendezvous state can need"},
		{"dicts", fill(p4+"](", "}e(", "."), "it takes more work than a rendezvous state can need"},
		{"tuples", fill(p4+"]", "N\x85a", "."), "it takes more work than a rendezvous state can need"},
		{"nested tuples", fill(p4+"N", "\x85", "."), "it takes more work than a rendezvous state can need"},
		{"nodes", fill(p4+classes+"]", "h\x00)\x81a", "."), "it takes more work than a rendezvous state can need"},
		{"times", fill(p4+"cdatetime\ndatetime\n\x94C\x0a\x07\xea\x0b\x15\x04\x0d\x07\x0e\xde\x60\x85\x94]", "h\x00h\x01Ra", "."), "it takes more work than a rendezvous state can need"},
		{"memo", fill(p4+"N", "\x94", ""), "it takes more work than a rendezvous state can need"},
		{"memo, far", fill(p4+"Nr\xff\x34\x0c\x00", "h\x00", "."), "memo index 799999 after 0 values"},
		{"list of one", fill(p4+"]", "Na", ""), "it takes more work than a rendezvous state can need"},
		{"sets of a list", fill("\x80\x02cbuiltins\nset\n\x94]("+strings.Repeat("N", 100000)+"e\x85\x94"+"]", "h\x00h\x01Ra", "."), "it takes more work than a rendezvous state can need"},
		{"attributes", fill(p4+classes+"]\x94}\x94(\x8c\x04addr\x8c\x01a\x8c\x03pidK\x00\x8c\x08local_idK\x00"+strings.Repeat("\x8c\x01xN", 50000)+"u\x85]", "h\x00)\x81h\x02ba", "."), "it takes more work than a rendezvous state can need"},
		{"addresses", fill(p4+classes+"X\x00\x04\x00\x00"+addr[:1024]+"\x94\x8c\x04addr\x94\x8c\x03pid\x94\x8c\x08local_id\x94\x87]", "h\x00)\x81}(h\x02h\x01h\x03K\x00h\x04K\x00uba", "."), "it takes more work than a rendezvous state can need"},
		{"long addresses", fill(p4+classes+"X\x00\x00\x10\x00"+addr+"\x94\x85]", nodeOf("\x8c\x04addrh\x01")+"a", "."), "a node's addr of 1048576 bytes, more than 1024"},
		{"encodings", fill("\x80\x02c_codecs\nencode\n\x94X\x00\x00\x10\x00"+addr+"\x8c\x06latin1\x86\x94]", "h\x00h\x01Ra", "."), "it takes more work than a rendezvous state can need"},
		{"names", fill(p4+"X\x00\x00\x10\x00"+addr+"\x94]", "h\x00h\x00\x93a", "."), "which no rendezvous state has"},
		{"waiting", waiting(pickle.MaxNodes + 1), "wait_list has 100001 nodes, more than 100000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, err := pickle.Decode(tt.data)
			runtime.ReadMemStats(&after)
			e, ok := errors.AsType[*pickle.Error](err)
			if !ok {
				t.Fatalf("state %v, error %v; want a pickle.Error", s, err)
			}
			if !strings.HasSuffix(e.Error(), tt.want) {
				t.Errorf("got %.200q\nwant %q", e.Error(), tt.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 25*pickle.MaxSize {
				t.Errorf("%d MiB were allocated for an input of %d", got>>20, len(tt.data)>>20)
			}
		})
	}
}

// waiting returns a pickle in which n nodes wait, all of them the same.
func waiting(n int) []byte {
	return []byte(fields{}.and("wait_list", "\x8f("+oneNode+"\x94"+strings.Repeat("h\x00", n-1)+"\x90").pickle(p4))
}

// TestMostNodes wants as many nodes as are allowed.
func TestMostNodes(t *testing.T) {
	s, err := pickle.Decode(waiting(pickle.MaxNodes))
	if err != nil || len(s.WaitList) != 1 {
		t.Errorf("%d waiting, %v", len(s.WaitList), err)
	}
}

// TestAllocs bounds what a decoded state costs beside itself.
func TestAllocs(t *testing.T) {
	for _, n := range []int{16, 1000} {
		want := many(n)
		ours, theirs := pickle.Encode(want), asPython(want)
		tests := []struct {
			name  string
			run   func()
			limit float64
		}{
			{"decode ours", func() { pickle.Decode(ours) }, float64(30*n) + 120},
			{"decode Python's", func() { pickle.Decode(theirs) }, float64(20*n) + 120},
			{"encode", func() { pickle.Encode(want) }, 40},
		}
		for _, tt := range tests {
			if got := testing.AllocsPerRun(10, tt.run); got > tt.limit {
				t.Errorf("%s, %d nodes: %v allocations, more than %v", tt.name, n, got, tt.limit)
			}
		}
	}
}
