package http10_test

import (
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/wire/http10"
)

const limit = 1000

func TestRead(t *testing.T) {
	tests := []struct{ name, in, body, wrong string }{
		{"whole", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "{}", ""},
		{"no length", "HTTP/1.0 200 OK\n\n{}", "{}", ""},
		{"cut", "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n{}", "", "ends after 2 of 5 bytes"},
		{"busy", "HTTP/1.0 503 Service Unavailable\r\n\r\nnot\x1b[2J yet\n", "", "it answers 503: not yet"},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n", "", "does not speak HTTP"},
		{"nothing", "", "", "ends in its head"},
		{"half a head", "HTTP/1.0 200 OK\r\nA: b\r\n", "", "ends in its head"},
		{"endless head", "HTTP/1.0 200 OK\r\nA: " + strings.Repeat("b", 9<<10), "", "more than 8 KiB"},
		{"more than its length", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello!", "hello", ""},
		{"an error with a length", "HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such", "", "it answers 404: no such"},
		{"in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", "transfer encoding 'chunked'"},
		{"too long", "HTTP/1.0 200 OK\r\n\r\n" + strings.Repeat("x", limit+1), "", "more than 1000 bytes"},
		{"huge", "HTTP/1.0 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "", "length of '99999999999' bytes"},
		{"negative", "HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", "", "length of '-1' bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, err := http10.Read(strings.NewReader(tt.in), limit)
			if string(body) != tt.body || (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%q, %v; want %q, %q", body, err, tt.body, tt.wrong)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.0 503 x\n\nno", "HTTP/1.0 200", "\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		body, err := http10.Read(strings.NewReader(s), limit)
		if err == nil && (!strings.HasPrefix(s, "HTTP/1.") || !strings.Contains(s, string(body)) || len(body) > limit) {
			t.Errorf("body %q of %q", body, s)
		}
	})
}
