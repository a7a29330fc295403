package timer_test

import (
	"encoding/hex"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/timer"
)

func seed(f *testing.F, packets ...string) {
	for _, p := range packets {
		b, err := hex.DecodeString(strings.ReplaceAll(p, " ", ""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// What is read is what was sent.
func FuzzSocketFrame(f *testing.F) {
	seed(f,
		"",
		"01",
		"01010f00 00000000 41d954fc40200000 0006 7363c3b67065", // docs/internals/timers.md
		"01020000 00000000 0000000000000000 0006 7363c3b67065",
		"01030000 00000000 0000000000000102 0000",
		"01030000 00000000 ffffffffffffffff 0000",
		"01010900 0000ffff 7ff0000000000000 0001 61", // never
		"01010900 7fffffff 7ff8000000000001 0000",
		"01010900 ffffffff bff0000000000000 0000",
		"01014100 00000000 41d954fc40200000 0000",
		"01010f00 00000000 41d954fc40200000 ffff 61",
		"0101"+strings.Repeat("01", 4112), "0101"+strings.Repeat("01", 5000),
		"02010f00 00000000 41d954fc40200000 0000",
		"7b227665 7273696f 6e223a20312c2022 7069 64",
	)
	f.Fuzz(func(t *testing.T, packet []byte) {
		got, err := timer.ParseFrame(packet)
		if err != nil {
			if err.Error() == "" || len(err.Error()) > 200 {
				t.Errorf("error %q", err)
			}
			return
		}
		if len(packet) > 18+4096 || len(got.Scope) != len(packet)-18 || got.PID < 0 || got.Kind < 1 || got.Kind > 3 {
			t.Errorf("% x is %+v", packet, got)
		}
		again, err := timer.ParseFrame(got.Append(nil))
		same := cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Time" },
			cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }))
		if diff := cmp.Diff(got, again, same); diff != "" || err != nil {
			t.Errorf("% x changes when it is written again (-first +second): %v\n%s", packet, err, diff)
		}
	})
}

// An answer is an error that a client can act on, or none, whatever it says.
func FuzzSocketAnswer(f *testing.F) {
	seed(f, "", "01000000", "0100000161", "01010003616263", "0102000161", "0103000161", "0109000161",
		"01020000", "02000000", "0102ffff61", "010200", "01020200"+strings.Repeat("61", 512), "01020201"+strings.Repeat("61", 513))
	f.Fuzz(func(t *testing.T, packet []byte) {
		err := timer.ParseAnswer(packet)
		if err == nil {
			if got := timer.AppendAnswer(nil, 0, string(packet[4:])); string(got) != string(packet) {
				t.Errorf("% x means done, which is % x", packet, got)
			}
			return
		}
		known := errors.Is(err, timer.ErrNotOwned) || errors.Is(err, timer.ErrTooMany) || errors.Is(err, timer.ErrInvalid)
		if known && (len(packet) < 4 || packet[1] < 1 || packet[1] > 3) {
			t.Errorf("% x is %v", packet, err)
		}
		if len(err.Error()) > 2048+100 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
	})
}

func TestSocketAnswers(t *testing.T) {
	for status, want := range []error{nil, timer.ErrInvalid, timer.ErrNotOwned, timer.ErrTooMany} {
		for _, text := range []string{"", "why", strings.Repeat("ü", 400)} {
			err := timer.ParseAnswer(timer.AppendAnswer(nil, status, text))
			if !errors.Is(err, want) {
				t.Errorf("status %d: %v, want %v", status, err, want)
			}
			if err != nil && (!strings.HasPrefix(err.Error(), "timer socket: "+text[:min(len(text), 510)]) || strings.ContainsRune(err.Error(), '\uFFFD')) {
				t.Errorf("status %d: %q, want the text", status, err)
			}
		}
	}
}

// The page's examples are what it says.
func TestSocketDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/internals/timers.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []timer.Frame
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "01 0") {
			continue
		}
		packet, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			t.Fatal(err)
		}
		f, err := timer.ParseFrame(packet)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if text := f.Append(nil); string(text) != string(packet) {
			t.Errorf("% x is written % x", packet, text)
		}
		got = append(got, f)
	}
	want := []timer.Frame{
		{Kind: 1, Signal: 15, Time: 1700000000.5, Scope: "scöpe"},
		{Kind: 2, Scope: "scöpe"},
		{Kind: 3, Step: 258},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/internals/timers.md (-want +got):\n%s", diff)
	}
}
