package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/files/safeopen"
)

// unitPattern says what a unit is, in another way than the code does.
var unitPattern = regexp.MustCompile(`(?s)^\r*(?:[^\r\n]*\r*\n|[^\r\n]+)`)

// splitUnits returns the units of all, the last one perhaps without an end.
func splitUnits(all string) (units []string) {
	for all != "" {
		n := len(unitPattern.FindString(all))
		if n == 0 {
			n = len(all) // only carriage returns are left
		}
		if all[n-1] != '\n' && strings.Trim(all[n:], "\r") == "" {
			n = len(all) // and those that may belong to a newline still to come
		}
		units, all = append(units, all[:n]), all[n:]
	}
	return units
}

func TestSplitUnits(t *testing.T) {
	for _, tt := range []struct {
		all  string
		want []string
	}{
		{"a\nb\n\nc", []string{"a\n", "b\n", "\n", "c"}},
		{"crlf\r\n\r\nx", []string{"crlf\r\n", "\r\n", "x"}},
		{"\r 10%\r 20%\r 30%\n", []string{"\r 10%", "\r 20%", "\r 30%\n"}},
		{"10%\r20%\r\n", []string{"10%", "\r20%\r\n"}},
		{"10%\r20%\r", []string{"10%", "\r20%\r"}},
		{"a\r\r\nb\r\rc\n", []string{"a\r\r\n", "b", "\r\rc\n"}},
		{"\r\r\n\r", []string{"\r\r\n", "\r"}},
	} {
		if got := splitUnits(tt.all); !equal(got, tt.want) {
			t.Errorf("splitUnits(%q) = %q, want %q", tt.all, got, tt.want)
		}
	}
}

func equal(a, b []string) bool { return strings.Join(a, "|") == strings.Join(b, "|") }

// FuzzUnits follows a file that grows in two steps and must find the units of
// the whole, wherever it was cut.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"a\nb", "crlf\r\n\r\nx", "\r 10%\r 20%\r 30%\n", "10%\r20%\r", "a\r\r\nb\r\rc\n", "\r\r\n\r", "\xff\x00\r\xfe"} {
		for cut := range len(s) {
			f.Add([]byte(s), uint16(cut))
		}
	}
	f.Fuzz(func(t *testing.T, all []byte, at uint16) {
		cut := min(int(at), len(all))
		var got []string
		take := func(b []byte) {
			for len(b) > 0 {
				n := unitLen(b)
				got, b = append(got, string(b[:n])), b[n:]
			}
		}
		first := unitsEnd(all[:cut], 0)
		take(all[:first])
		known := bytes.LastIndexByte(all[first:cut], '\n') // none may be left
		if known >= 0 {
			t.Fatalf("%q cut at %d: a newline is left after %d", all, cut, first)
		}
		second := unitsEnd(all[first:], cut-first)
		take(all[first : first+second])
		rest := all[first+second:]
		if len(rest) > 0 {
			got = append(got, string(rest))
		}
		want := splitUnits(string(all))
		if !equal(got, want) {
			t.Fatalf("%q cut at %d: units %q, want %q", all, cut, got, want)
		}
		// A long unit, whose beginning is not looked at again, ends at the same place.
		if len(rest) == 0 && len(want) == 1 && cut > 0 && all[0] != '\r' && !bytes.ContainsAny(all[:cut], "\r\n") {
			b := all[cut-1:]
			if end := unitsEnd(b, 1); end != len(b) || unitLen(b) != len(b) {
				t.Fatalf("%q: the unit's end after %d is %d or %d, want %d", all, cut, end, unitLen(b), len(b))
			}
		}
	})
}

// What is copied does not depend on the pieces in which a file grows, and no
// byte of it is lost or changed: without prefixes and added newlines the output
// is the file.
func FuzzTail(f *testing.F) {
	f.Add([]byte("a\nb\r\rc\nlast"), uint16(3), uint16(5))
	f.Add([]byte("\r 1%\r 2%\n\nx\r\n"), uint16(1), uint16(9))
	f.Add([]byte(" 1%\r 2%\n\nx\r\n"), uint16(1), uint16(5)) // a unit without \r and \n of its own
	f.Fuzz(func(t *testing.T, all []byte, x, y uint16) {
		a := min(int(x), len(all))
		b := min(a+int(y), len(all))
		path := filepath.Join(t.TempDir(), "log")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var out bytes.Buffer
		tail := newTail(tailConfig{files: map[int]string{0: path}, prefixes: map[int]string{0: "P"}, to: &console{w: &out}, open: safeopen.Open})
		defer tail.followers[0].src.close()
		for _, piece := range [][]byte{all[:a], all[a:b], all[b:]} {
			if _, err := file.Write(piece); err != nil {
				t.Fatal(err)
			}
			for more := true; more; {
				_, more = tail.round()
			}
		}
		tail.finish()
		var want strings.Builder
		for _, unit := range splitUnits(string(all)) {
			want.Write(appendUnit(nil, []byte("P"), []byte(unit)))
		}
		if w := want.String(); w != "" && !strings.HasSuffix(w, "\n") {
			want.WriteByte('\n')
		}
		if out.String() != want.String() {
			t.Fatalf("%q in pieces of %d, %d: %q, want %q", all, a, b, out.String(), want.String())
		}
	})
}
