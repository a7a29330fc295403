package pipe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/wire/pipe"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	nothing := ""
	for _, want := range []pipe.Report{
		{Leader: &pipe.Leader{Addr: "h:1", ID: "a", Mine: true, Term: 7}},
		{Gone: 7}, {Closed: true}, {Waiting: &nothing}, {Ready: true}, {Error: "line\nbreak"},
	} {
		var b bytes.Buffer
		if err := pipe.NewWriter(&b).Write(want); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\n"); n != 1 {
			t.Errorf("%q: %d lines, want 1", b.String(), n)
		}
		var got pipe.Report
		if err := pipe.NewReader(&b).Read(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(pipe.Elect{RunID: "r", ID: "i", Addr: "a:1", Endpoints: []string{"h:1"}, TTL: pipe.Millis(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"run_id":"r","id":"i","addr":"a:1","endpoints":["h:1"],"ttl_ms":5000}`
	if string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
}

func TestReadErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"not JSON", "hello\n", `line "hello"`},
		{"long", strings.Repeat("x", pipe.MaxLine+1), "more than 65536 bytes"},
		{"negative time", `{"ttl_ms":-1}`, "-1 ms: want 0 to a day"},
		{"long time", `{"ttl_ms":9000000000}`, "want 0 to a day"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var e pipe.Elect
			err := pipe.NewReader(strings.NewReader(tt.in)).Read(&e)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
	if err := pipe.NewReader(strings.NewReader("")).Read(&struct{}{}); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want EOF", err)
	}
}

// What is read can be written, and reads as the same.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{`{"leader":{"addr":"h:1","id":"a","mine":true,"term":7}}`, `{"waiting":""}`, `{"gone":9223372036854775807}`, `null`, `{`, "\n\n", `{"error":"\u0000"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := pipe.NewReader(bytes.NewReader(in))
		for range 10 {
			var first, second pipe.Report
			if r.Read(&first) != nil {
				return
			}
			var b bytes.Buffer
			if err := pipe.NewWriter(&b).Write(first); err != nil {
				t.Fatalf("write %+v: %v", first, err)
			}
			if b.Len() > pipe.MaxLine {
				return // what JSON escapes takes more
			}
			if err := pipe.NewReader(&b).Read(&second); err != nil {
				t.Fatalf("read again: %v", err)
			}
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("-first +second:\n%s", diff)
			}
		}
	})
}
