package procfs_test

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/host/procfs"
)

func TestParseStat(t *testing.T) {
	const tail = " 1 2 3 34816 7 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456789 1000 200"
	resident := 200 * int64(os.Getpagesize())
	for _, tt := range []struct {
		name, text string
		want       procfs.Stat
		ok         bool
	}{
		{"plain", "42 (sh) S" + tail + "\n", procfs.Stat{PID: 42, State: 'S', Parent: 1, Group: 2, Session: 3, Start: 123456789, CPU: 260 * time.Millisecond, Threads: 1, Resident: resident}, true},
		{"name with parentheses and blanks", "42 (a) R 9 (b) Z" + tail, procfs.Stat{PID: 42, State: 'Z', Parent: 1, Group: 2, Session: 3, Start: 123456789, CPU: 260 * time.Millisecond, Threads: 1, Resident: resident}, true},
		{"name with a line break", "42 (a\n) D" + tail, procfs.Stat{PID: 42, State: 'D', Parent: 1, Group: 2, Session: 3, Start: 123456789, CPU: 260 * time.Millisecond, Threads: 1, Resident: resident}, true},
		{"empty", "", procfs.Stat{}, false},
		{"no name", "42 sh S" + tail, procfs.Stat{}, false},
		{"no pid", "(sh) S" + tail, procfs.Stat{}, false},
		{"cut short", "42 (sh) S 1 2 3", procfs.Stat{}, false},
		{"letters for numbers", "42 (sh) S x 2 3", procfs.Stat{}, false},
		{"long state", "42 (sh) SS" + tail, procfs.Stat{}, false},
		{"reversed parentheses", "42 )sh( S" + tail, procfs.Stat{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := procfs.ParseStat([]byte(tt.text))
			if (err == nil) != tt.ok {
				t.Fatalf("error %v, want ok %v", err, tt.ok)
			}
			if tt.ok {
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) R 9 (b) Z 1 2 3 34816 7 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456789 1000 200"))
	f.Add([]byte("42 (sh)"))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := procfs.ParseStat(text); err == nil && s.State == 0 {
			t.Errorf("%q: no state and no error", text)
		}
	})
}

func TestParseChildren(t *testing.T) {
	if d := cmp.Diff([]int{12, 7, 3000}, procfs.ParseChildren([]byte("12 7 x -3 0 3000 "))); d != "" {
		t.Error(d)
	}
}

func TestHasEnv(t *testing.T) {
	env := []byte("A=1\x00AB=2\x00C=\x00D")
	for entry, want := range map[string]bool{"A=1": true, "AB=2": true, "B=2": false, "A": false, "C=": true, "D": true, "": false} {
		if got := procfs.HasEnv(env, entry); got != want {
			t.Errorf("%q: got %v, want %v", entry, got, want)
		}
	}
}
