package text_test

import (
	"math"
	"testing"

	"github.com/muster-run/muster/internal/format/text"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 hosts", 1: "1 host", 2: "2 hosts", 131072: "131072 hosts"} {
		if got := text.Count(n, "host"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10240: "10 KiB", 1 << 20: "1.0 MiB", 1<<20 - 1: "1.0 MiB",
		3 << 29: "1.5 GiB", 812 << 40: "812 TiB", math.MaxUint64: "16 EiB",
	} {
		if got := text.Size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		numbers   []int
		sep, want string
	}{
		{nil, ",", ""}, {[]int{3}, ",", "3"}, {[]int{0, 1, 2, 5}, ",", "0-2,5"}, {[]int{0, 2, 4, 5}, ", ", "0, 2, 4-5"},
	} {
		if got := text.Ranges(tt.numbers, tt.sep); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.numbers, got, tt.want)
		}
	}
}

func TestClip(t *testing.T) {
	for s, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc...", "äöü": "äöü", "äöüß": "äöü..."} {
		if got := text.Clip(s, 3); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for in, want := range map[string]string{
		"10m": "600", "1h30m": "5400", "90s": "90", "500ms": "0.5", "-1s": "-1", "0": "0",
		"5": "5", "1.5": "1.5", "1_000": "1_000", " 5": " 5", "5 m": "5 m", "10x": "10x", "": "", "inf": "inf",
	} {
		if got := text.Seconds(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
