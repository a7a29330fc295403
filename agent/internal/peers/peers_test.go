package peers

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/muster-run/muster/store"
)

func TestRaise(t *testing.T) {
	s := store.NewMemory()
	for _, tt := range []struct {
		to   int
		want string
	}{{2, "2"}, {1, "2"}, {2, "2"}, {10, "10"}, {9, "10"}} {
		if _, err := Raise(t.Context(), s, "k", tt.to); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(t.Context(), "k"); string(got) != tt.want || err != nil {
			t.Errorf("raised to %d: %s, %v, want %s", tt.to, got, err, tt.want)
		}
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, err := Raise(t.Context(), s, "k", i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n, err := s.Add(t.Context(), "k", 0); n != 49 || err != nil {
		t.Errorf("raised to 0 … 49: %d, %v", n, err)
	}
	if err := s.Set(t.Context(), "k", []byte("much")); err != nil {
		t.Fatal(err)
	}
	if _, err := Raise(t.Context(), s, "k", 3); err == nil || !strings.Contains(err.Error(), `"much"`) {
		t.Errorf("no number: error %v, want one that shows it", err)
	}
	closed, end := context.WithCancelCause(t.Context())
	end(store.ErrClosed)
	if _, err := Raise(closed, s, "k", 3); !errors.Is(err, store.ErrClosed) {
		t.Errorf("closed: error %v", err)
	}
}

// A record that no agent writes is not looked into.
func TestHugeRecord(t *testing.T) {
	text := `{"node": 1, "rank": 1, "failures": [` + strings.Repeat("{},", 1<<20) + `{}]}`
	if r, err := ParseRecord([]byte(text)); err == nil || !strings.Contains(err.Error(), "bytes, more than") {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"node": 1, "rank": 5, "host": "h", "restarts": 2, "final": false, "cause": "exit code 3", "failures": [{"rank": 5}]}`))
	f.Add([]byte(`{"node": -1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRecord(text)
		if (r == nil) == (err == nil) {
			t.Fatalf("%+v, %v", r, err)
		}
		if r != nil && (r.Node < 0 || r.Restarts < 0) {
			t.Errorf("%s: %+v", text, r)
		}
	})
}
